"""HTTP/1.1 on sockets: bytes in, requests out; responses in, bytes out."""
