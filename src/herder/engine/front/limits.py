"""How much memory and time clients may take: per connection, per user and in total."""

from __future__ import annotations

import resource
from dataclasses import dataclass

TARGET_BYTES = 64 << 10
HEAD_BYTES = 256 << 10
HEADERS = 1_000
FRAMING_BYTES = 16 << 10  # of a body without any content among them: chunk extensions, trailers

READ_BYTES = 64 << 10  # per turn of the event loop
SLICE_BYTES = 16 << 10  # parsed before it is checked again whether the connection holds too much
AHEAD_BYTES = 64 << 10  # received and not asked for yet: bodies, pipelined requests, bytes behind an upgrade
PIPELINED = 64  # requests waiting behind one that runs, before we stop reading

IDLE_SECONDS = 90.0  # between two requests
HEAD_SECONDS = 32.0  # from the first byte of a head to its last
BODY_SECONDS = 60.0
STALL_SECONDS = 60.0  # a client that reads nothing of what waits for it
PAUSE_SECONDS = 90.0  # a client that is not read any further, whose end would go unnoticed
ANSWER_BYTES_PER_SECOND = 16 << 10  # the slowest reader of an answer that has an end
LINGER_SECONDS = 1.0  # reading on after a refusal, so that the client gets to see it
LINGER_BYTES = 4 << 20
SWEEP_SECONDS = 5.0
TRIM_CONNECTIONS = 50  # closed since freed memory was last returned to the machine
KEEPALIVE_SECONDS = 60  # of silence, before TCP asks whether the client still exists

WRITE_HIGH_WATER = 64 << 10
WRITE_BYTES = 64 << 10  # handed to the transport at a time: TLS keeps a buffer as large as its largest write

QUEUE_SECONDS = 15.0  # how long a request waits for its turn before it is answered with 429
TURN_SECONDS = 5.0  # how long a request has its turn before it counts as long-running; less than others wait
RETRY_AFTER = "1"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one listener. Terms as in kube-apiserver: requests in flight, long-running requests (watches, exec, …).

    Members of system:masters are exempt from limits on requests, as in API Priority and Fairness, and not from those
    on bytes.
    """

    connections: int = 10_000
    connections_per_user: int = 2_000
    anonymous_connections_per_source: int = 256
    """Connections of one address that carried no authenticated request yet."""
    in_flight: int = 400
    in_flight_per_user: int = 100
    queued_per_user: int = 100
    long_running: int = 10_000
    long_running_per_user: int = 1_000
    body_bytes: int = 64 << 20
    body_bytes_per_user: int = 16 << 20

    def possible_connections(self) -> int:
        """Leaves file descriptors for the store and for connections of our own."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if allowed == resource.RLIM_INFINITY else min(self.connections, allowed * 3 // 4)
