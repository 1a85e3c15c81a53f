"""What goes wrong in a tunnel, as its users see it."""

from __future__ import annotations


class TunnelError(Exception):
    """The text is for people and may cross the wire; it never holds a secret."""


class SessionError(TunnelError):
    """The whole session is over: the peer broke the protocol, was silent for too long or went away."""


class StreamError(TunnelError):
    """One stream is over, otherwise than by an orderly close. The session goes on."""


class NoSession(TunnelError):
    def __init__(self, key: str) -> None:
        super().__init__(f"failed to find Session for client {key}")
        self.key = key


class Rejected(TunnelError):
    """The server answered the handshake with something else than an upgrade."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"the server refused the tunnel: {status} {body}".rstrip())
        self.status = status
