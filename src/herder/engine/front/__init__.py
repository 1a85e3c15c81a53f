"""HTTP/1.1 on sockets: bytes in, requests out; responses in, bytes out. What answers them is not known here."""
