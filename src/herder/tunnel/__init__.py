"""The reverse tunnel: remotedialer's wire protocol, both roles.

`frames`, `stream`, `session` and `websocket` know no sockets, no clock and no event loop; `link`, `client`, `server`
and `registry` join them to asyncio.
"""
