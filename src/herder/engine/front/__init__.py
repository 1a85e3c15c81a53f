"""HTTP/1.1 server on asyncio: connections, request parsing, flow control and response framing."""
