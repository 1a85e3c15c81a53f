"""`k3s etcd-snapshot`: the store as one file, named as k3s names them."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Sequence

from .told import Told


def run(verb: str, words: Sequence[str], told: Told) -> int:
    database = told.configuration.data_dir / "server" / "db"
    directory = database / "snapshots"
    directory.mkdir(parents=True, exist_ok=True)
    if verb == "save":
        name = next((word.partition("=")[2] for word in words if word.startswith("--name=")), "on-demand")
        path = directory / f"{name}-{told.configuration.node_name}-{int(time.time())}"
        with tarfile.open(path, "w") as archive:
            archive.add(database / "stand-in", "stand-in")
        print(f"Snapshot {path.name} saved.")
    else:
        for path in sorted(directory.iterdir()):
            print(path.name, f"file://{path}", path.stat().st_size)
    return 0
