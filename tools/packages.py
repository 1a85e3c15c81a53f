"""Build the wheel and the sdist of the last commit: the same commit gives the same bytes.

python -m tools.packages [--output DIRECTORY]
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"


def build(output: Path, checkout: Path = ROOT) -> list[Path]:
    """Build from an export of the commit, so that files which are not committed cannot get into a package."""
    output.mkdir(parents=True, exist_ok=True)
    epoch = _git(checkout, "log", "-1", "--format=%ct").decode().strip()
    with tempfile.TemporaryDirectory(prefix="herder-packages-") as scratch:
        sources, built = Path(scratch, "sources"), Path(scratch, "built")
        with tarfile.open(fileobj=io.BytesIO(_git(checkout, "archive", "--format=tar", "HEAD"))) as archive:
            archive.extractall(sources, filter="data")
        run_backend(sources, built, epoch)
        packages = [Path(shutil.copy(package, output)) for package in sorted(built.iterdir())]
    lines = (f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.name}\n" for package in packages)
    (output / SUMS).write_text("".join(lines))
    return packages


def run_backend(sources: Path, output: Path, epoch: str, *targets: str) -> None:
    """Run the build backend of pyproject.toml, without a network; `epoch` is the time of all files."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(output), *targets],
        cwd=sources,
        env=environment | {"SOURCE_DATE_EPOCH": epoch},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"packages: the build backend failed:\n{done.stdout}")


def uncommitted(checkout: Path = ROOT) -> list[str]:
    """Files that differ from the last commit."""
    return [line[3:] for line in _git(checkout, "status", "--porcelain").decode().splitlines()]


def _git(checkout: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(checkout), *arguments], stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel and the sdist of the last commit.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="directory of the packages (default: dist)")
    output = parser.parse_args().output
    if changed := uncommitted():
        print(
            f"packages: {len(changed)} files with uncommitted changes are packed as of the last commit", file=sys.stderr
        )
    for package in build(output):
        print(package)


if __name__ == "__main__":
    main()
