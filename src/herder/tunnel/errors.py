"""Errors of the tunnel."""

from __future__ import annotations


class TunnelError(Exception):
    """Base class. The message may cross the wire and never contains a secret."""


class SessionError(TunnelError):
    """The session ended: the peer violated the protocol, timed out or disconnected."""


class StreamError(TunnelError):
    """A stream ended with an error. The session continues."""


class NoSession(TunnelError):
    """The client has no session."""

    def __init__(self, key: str) -> None:
        super().__init__(f"failed to find Session for client {key}")
        self.key = key


class Rejected(TunnelError):
    """The server did not respond to the handshake with an upgrade."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"tunnel rejected by the server: {status} {body}".rstrip())
        self.status = status
