"""Where Python begins in the one file: it unpacks the rest of it, once, and goes on there."""

import hashlib
import os
import sys
import zipfile
from pathlib import Path

ARCHIVE = Path(sys.path[0])
DATA = Path("/var/lib/rancher/k3s/data")


def unpacked() -> Path:
    told = ARCHIVE.stat()
    place = DATA / hashlib.sha256(f"{ARCHIVE}{told.st_mtime_ns}{told.st_size}".encode()).hexdigest()[:32]
    if not place.exists():
        scratch = place.with_name(f"{place.name}.{os.getpid()}")
        with zipfile.ZipFile(ARCHIVE) as archive:
            archive.extractall(scratch)
        scratch.rename(place)
    return place


def begin() -> int:
    with zipfile.ZipFile(ARCHIVE) as archive:
        version = archive.read("VERSION").decode()
    if sys.argv[1:] in (["--version"], ["-v"]):
        print(f"k3s version {version} (a stand-in, not k3s)")
        return 0
    payload = str(unpacked() / "payload")
    sys.path.insert(0, payload)
    os.environ["PYTHONPATH"] = payload  # for the processes that this starts
    from k3s_stand_in.main import main  # type: ignore[import-not-found]

    return int(main(sys.argv[1:], version))


if __name__ == "__main__":
    sys.exit(begin())
