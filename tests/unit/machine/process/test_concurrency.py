"""Many concurrent machines: each has its own address, and none is left behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.unit.machine.host.hosts import Host

COUNT = 24


def test_many_machines_are_created_and_removed_concurrently(tmp_path: Path) -> None:
    with Host(tmp_path) as host, ThreadPoolExecutor(COUNT) as pool:
        host.start()
        names = [f"m{number}" for number in range(COUNT)]
        places = list(pool.map(host.create, names))
        assert len({place.address for place in places}) == len({place.host_key for place in places}) == COUNT
        assert all(pool.map(host.runs, names))
        list(pool.map(lambda name: host.machine(name).remove(), names))
        assert host.leftovers() == []
