"""Limits on memory and time per connection, per user and in total."""

from __future__ import annotations

import resource
from dataclasses import dataclass

TARGET_BYTES = 64 << 10
HEAD_BYTES = 256 << 10
HEADERS = 1_000
FRAMING_BYTES = 16 << 10  # chunk extensions and trailers without content in between

READ_BYTES = 64 << 10  # per event loop iteration
SLICE_BYTES = 16 << 10  # parsed between two checks of the input limits
AHEAD_BYTES = 64 << 10  # received but not consumed: bodies, pipelined requests, bytes after an upgrade
PIPELINED = 64  # queued pipelined requests before reading pauses

IDLE_SECONDS = 90.0  # between two requests on a kept-alive connection
HEAD_SECONDS = 32.0  # from the first to the last byte of a request head
BODY_SECONDS = 60.0
STALL_SECONDS = 60.0  # waiting for a client that reads slowly while the write buffer is full
PAUSE_SECONDS = 90.0  # reading paused, during which a disconnect is not noticed
RESPONSE_BYTES_PER_SECOND = 16 << 10  # minimum read rate while the write buffer is full, beyond STALL_SECONDS
LINGER_SECONDS = 1.0  # reading continues after a rejected request, so that the client sees the response
LINGER_BYTES = 4 << 20
SWEEP_SECONDS = 5.0
TRIM_CONNECTIONS = 50  # closed connections between two calls of malloc_trim
KEEPALIVE_SECONDS = 60  # idle time before TCP keepalive probes

WRITE_HIGH_WATER = 64 << 10
WRITE_BYTES = 64 << 10  # per transport write: TLS keeps a buffer as large as its largest write

QUEUE_SECONDS = 15.0  # maximum wait in a queue before a 429 response
SLOT_SECONDS = 5.0  # a request that runs longer counts as long-running; less than QUEUE_SECONDS
RETRY_AFTER = "1"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one listener, with kube-apiserver's terms: requests in flight, long-running requests (watch, exec,
    …).

    Members of system:masters are exempt from request limits, as in API Priority and Fairness, but not from byte limits.
    """

    connections: int = 10_000
    connections_per_user: int = 2_000
    anonymous_connections_per_source: int = 256
    """Connections per address without an authenticated request so far."""
    in_flight: int = 400
    in_flight_per_user: int = 100
    queued_per_user: int = 100
    long_running: int = 10_000
    long_running_per_user: int = 1_000
    body_bytes: int = 64 << 20
    body_bytes_per_user: int = 16 << 20
    retained_bytes: int = 512 << 20
    """State of responses that clients read slowly; see `retained.py`."""
    retained_bytes_per_user: int = 128 << 20

    def possible_connections(self) -> int:
        """Return the connection limit, reduced to leave file descriptors for the store and outgoing connections."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if allowed == resource.RLIM_INFINITY else min(self.connections, allowed * 3 // 4)
