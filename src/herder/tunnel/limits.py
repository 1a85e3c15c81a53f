"""Limits and timeouts of the tunnel. Values that a peer can observe match remotedialer; the caps are ours."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session, in bytes and seconds."""

    # Received bytes of a stream that its reader has not consumed.
    pause_above: int = 2 * MIB
    resume_below: int = 256 * KIB
    in_flight: int = 16 * MIB  # may still arrive after a PAUSE: two full socket buffers and the network in between
    # Received bytes of all streams of a session. Above half of it ("crowded"), streams are paused much earlier.
    session_bytes: int = 256 * MIB
    crowded_pause_above: int = 64 * KIB
    # Received bytes of all sessions of a registry, including unfinished messages. Beyond it, each session is limited to
    # its share: sessions above it lose streams or are closed, and the others continue.
    total_bytes: int = 512 * MIB
    share_bytes: int = 4 * MIB
    # Queued bytes before a writer has to wait.
    send_high: int = 256 * KIB
    send_low: int = 128 * KIB
    chunk: int = 32 * KIB  # sent per turn of a stream
    control_bytes: int = 1 * MIB  # queued control messages of a peer that does not read
    message_bytes: int = 16 * MIB  # one WebSocket message
    streams: int = 10_000
    announced_clients: int = 10_000
    # Seconds.
    silence: float = 45.0  # remotedialer: 60; a lost agent must be reported within a minute
    ping_every: float = 5.0
    sync_every: float = 60.0
    dial: float = 60.0
    client_handshake: float = 10.0
    server_handshake: float = 5.0

    @property
    def stream_bytes(self) -> int:
        """Hard cap: a peer beyond it ignored a PAUSE."""
        return self.pause_above + self.in_flight


DEFAULT = Limits()
