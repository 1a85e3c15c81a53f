"""Pin the newest versions of the Debian packages that this host's apt knows, in debian.txt.

python -m tools.images.update_pins        # after apt-get update, on a host with Debian's bookworm as an apt source
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from email.parser import HeaderParser

from tools.images.debian import PINS
from tools.images.errors import BuildError

SUITE = "bookworm"
# The interpreter, what its modules link against, and the data that they read. Modules of the standard library that
# need more are left out, see `tools.images.base`. There is no shell.
NAMES = """
    base-files ca-certificates gcc-12-base libbz2-1.0 libc6 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal
    libpython3.11-stdlib libsqlite3-0 libssl3 libuuid1 media-types netbase python3.11 python3.11-minimal tzdata zlib1g
"""
HEADER = """\
# Debian packages of the images: name, version, size, SHA-256 and path below the root of a mirror.
# Written by `python -m tools.images.update_pins`.
"""


def lines(names: Sequence[str]) -> list[str]:
    command = ["apt-cache", "show", "--no-all-versions", *(f"{name}:amd64" for name in names)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode != 0:
        raise BuildError(f"apt-cache: {shown.stderr.strip()[-300:]}")
    found = {}
    for stanza in shown.stdout.strip().split("\n\n"):
        fields = HeaderParser().parsestr(stanza)
        found[fields["Package"]] = " ".join(fields[key] for key in ("Package", "Version", "Size", "SHA256", "Filename"))
    if missing := [name for name in names if name not in found]:
        raise BuildError(f"apt knows no package {', '.join(missing)}")
    return [found[name] for name in sorted(names)]


def main() -> None:
    try:
        PINS.write_text(HEADER + "".join(f"{line}\n" for line in lines(NAMES.split())))
    except BuildError as problem:
        sys.exit(f"update_pins: {problem}")


if __name__ == "__main__":
    main()
