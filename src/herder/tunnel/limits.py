"""Every number of the tunnel. Those that a peer can observe are the contract's; the caps are our own."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    # What a stream holds of what its reader has not taken yet.
    pause_above: int = 2 * MIB
    resume_below: int = 256 * KIB
    in_flight: int = 16 * MIB  # what may still come after a PAUSE: two full socket buffers and what lies between
    # What all streams of a session hold. From half of it on ("crowded") each is paused much earlier.
    session_bytes: int = 256 * MIB
    crowded_pause_above: int = 64 * KIB
    # What all sessions of a registry hold together, unfinished messages included. Beyond it each may hold only its
    # share: those that hold more lose streams, or end, and the others go on.
    total_bytes: int = 512 * MIB
    share_bytes: int = 4 * MIB
    # What a writer may leave with us before it has to wait.
    send_high: int = 256 * KIB
    send_low: int = 128 * KIB
    chunk: int = 32 * KIB  # one turn of a stream
    control_bytes: int = 1 * MIB  # answers that a peer lets pile up by not reading
    message_bytes: int = 16 * MIB  # one WebSocket message
    streams: int = 10_000
    announced_clients: int = 10_000
    # Seconds.
    silence: float = 60.0
    ping_every: float = 5.0
    sync_every: float = 60.0
    dial: float = 60.0
    client_handshake: float = 10.0
    server_handshake: float = 5.0

    @property
    def stream_bytes(self) -> int:
        """The hard cap: who is beyond it did not heed a PAUSE."""
        return self.pause_above + self.in_flight


DEFAULT = Limits()
