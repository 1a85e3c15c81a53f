"""Memory usage of the embedded server."""

from __future__ import annotations

from pathlib import Path

from tests.support.embedded import Embedded


def resident(server: Embedded) -> int:
    """Resident bytes, as Linux counts them."""
    assert server.process is not None
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
