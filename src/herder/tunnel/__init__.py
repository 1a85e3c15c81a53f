"""Reverse tunnel: remotedialer's wire protocol, client and server.

`frames`, `stream`, `session` and `websocket` are sans-I/O: they use no sockets, no clock and no event loop. `link`,
`client`, `server` and `registry` connect them to asyncio.
"""
