"""How much of a client's bytes and time one connection may take."""

from __future__ import annotations

TARGET_BYTES = 64 << 10
HEAD_BYTES = 256 << 10
HEADERS = 1_000

IDLE_SECONDS = 90.0  # between two requests
HEAD_SECONDS = 32.0  # from the first byte of a head to its last
BODY_SECONDS = 60.0
STALL_SECONDS = 60.0  # a client that reads nothing of what waits for it
LINGER_SECONDS = 1.0  # reading on after a refusal, so that the client gets to see it
SWEEP_SECONDS = 5.0

WRITE_HIGH_WATER = 64 << 10
PIPELINED = 64  # requests waiting behind one that runs, before we stop reading
