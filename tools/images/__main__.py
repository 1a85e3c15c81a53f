"""Build the OCI images of the last commit, for amd64: the same commit and pins give the same digests.

python -m tools.images [--output DIRECTORY] [--cache DIRECTORY] [--mirror URL]… [--push REGISTRY/PREFIX]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from herder.clusteragent.registry import DOCKER_HUB, Login, Reference, RegistryError, Repository
from herder.oci import digest_of, processor, write_archive
from tools import packages
from tools.images import debian, fetch
from tools.images.build import ARCHITECTURE, Built, Inputs, build
from tools.images.errors import BuildError
from tools.images.sbom import Release
from tools.images.wheels import Wheel

REQUIREMENTS = tuple(packages.ROOT / "requirements" / f"{name}.txt" for name in ("runtime", "amazonec2"))


def release_of(checkout: Path, wheel: Wheel) -> Release:
    shown = ["git", "-C", str(checkout), "log", "-1", "--format=%H %ct"]
    commit, _, seconds = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    created = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Release(str(wheel.metadata["Version"]), commit, created)


def own_wheel(checkout: Path) -> Wheel:
    """Build the wheel of the last commit."""
    with tempfile.TemporaryDirectory(prefix="herder-images-") as scratch:
        (file,) = (package for package in packages.build(Path(scratch), checkout) if package.suffix == ".whl")
        return Wheel(file.name, file.read_bytes())


def write(built: Sequence[Built], document: bytes, output: Path) -> list[Path]:
    """Write an archive in OCI layout and a bill of materials for each image, and the sums of all files."""
    output.mkdir(parents=True, exist_ok=True)
    files = []
    for each in built:
        archive, bill = output / f"{each.file_name}.tar", output / f"{each.file_name}.spdx.json"
        with archive.open("wb") as file:
            # The name as containerd knows it: kubelet looks for images without a registry under this one.
            write_archive(each.image, f"{DOCKER_HUB}/{each.name}", file, ARCHITECTURE)
        bill.write_bytes(document)
        files += [archive, bill]
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (output / packages.SUMS).write_text("".join(lines))
    return files


async def push(built: Sequence[Built], prefix: str, login: Login | None) -> list[str]:
    """Push all images to REGISTRY/PREFIX; return their names with digests."""
    pushed = []
    for each in built:
        reference = Reference.parse(f"{prefix.rstrip('/')}/{each.name}")
        async with Repository(reference, login) as repository:
            digest = await repository.put_image(each.image)
        pushed.append(f"{prefix.rstrip('/')}/{each.name}@{digest}")
    return pushed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.images", description="Build the OCI images of the last commit.")
    add = parser.add_argument
    add("--output", type=Path, default=packages.ROOT / "dist" / "images", help="default: dist/images")
    add("--cache", type=Path, default=fetch.cache(), help="directory of downloaded packages and wheels")
    add("--mirror", action="append", default=[], help="Debian mirror; default: those of this host's apt; repeatable")
    add("--push", metavar="REGISTRY/PREFIX", help="also push the images; HTTPS, except to loopback addresses")
    add("--username", help="user name for the registry")
    add("--password-file", type=Path, help="file with the password for the registry")
    return parser


def main(words: Sequence[str] | None = None) -> None:
    parser = _parser()
    wanted = parser.parse_args(words)
    if (wanted.username is None) != (wanted.password_file is None):
        parser.error("--username and --password-file must be used together")
    if changed := packages.uncommitted():
        print(f"images: {len(changed)} files with uncommitted changes are built as of the last commit", file=sys.stderr)
    try:
        login = Login(wanted.username, wanted.password_file.read_text().strip()) if wanted.username else None
        if processor() != ARCHITECTURE:  # the images' own Python compiles the modules
            raise BuildError(f"the images are for {ARCHITECTURE}, and must be built on such a host")
        found = fetch.packages(debian.pins(), wanted.cache, wanted.mirror)
        distributions = fetch.distributions(REQUIREMENTS, wanted.cache)
        wheel = own_wheel(packages.ROOT)
        built, document = build(Inputs(release_of(packages.ROOT, wheel), found, distributions, wheel))
        write(built, document, wanted.output)
        for each in built:
            print(f"{wanted.output / each.file_name}.tar {each.name} {digest_of(each.image.manifest)}")
        if wanted.push:
            print(*asyncio.run(push(built, wanted.push, login)), sep="\n")
    except (BuildError, RegistryError, OSError) as problem:
        sys.exit(f"images: {problem}")


if __name__ == "__main__":
    main()
