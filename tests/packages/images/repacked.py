"""Packages and wheels made again from what `make dev` and `make machine-image` installed: tests download nothing.

The files are those of the original packages: dpkg's sums verify them. The archives around them are not, so these inputs
have pins of their own.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

from tools.images.debian import Pin
from tools.images.wheels import Requirement

_MERGED = ("/bin", "/lib", "/lib64", "/sbin")
_BY_INSTALLERS = ("INSTALLER", "REQUESTED", "direct_url.json")
_ALWAYS = (1980, 1, 1, 0, 0, 0)


def deb(control: str, data: bytes, md5sums: str = "") -> bytes:
    """A Debian package from its parts."""
    described = {"./control": control.encode(), "./md5sums": md5sums.encode()}
    members = (("debian-binary", b"2.0\n"), ("control.tar.gz", plain_tar(described)), ("data.tar.gz", data))
    archive = io.BytesIO(b"!<arch>\n")
    archive.seek(0, io.SEEK_END)
    for name, body in members:
        archive.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(body):<10}`\n".encode())
        archive.write(body + b"\n" * (len(body) % 2))
    return archive.getvalue()


def plain_tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, body in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(body)
            archive.addfile(header, io.BytesIO(body))
    return content.getvalue()


def pinned(name: str, version: str, content: bytes, directory: Path) -> Pin:
    file = f"{name}_{version.rpartition(':')[2]}_amd64.deb"  # as in Debian's archive, without the epoch
    (directory / file).write_bytes(content)
    return Pin(name, version, len(content), hashlib.sha256(content).hexdigest(), f"pool/main/{file}")


# --- from a Debian system ---------------------------------------------------------------------------------------------


def packages(root: Path, names: list[str], directory: Path) -> list[Pin]:
    """Make packages of a system again."""
    stanzas = (root / "var/lib/dpkg/status").read_text().split("\n\n")
    controls = {
        found[1]: stanza for stanza in stanzas if (found := re.search(r"^Package: (\S+)$", stanza, re.MULTILINE))
    }
    pins = []
    for name in names:
        control = re.sub(r"^(Status|Conffiles):.*\n( .*\n)*", "", controls[name] + "\n", flags=re.MULTILINE)
        version = re.search(r"^Version: (\S+)$", control, re.MULTILINE)
        assert version is not None
        listed = _info(root, name, "list").splitlines()
        sums = _info(root, name, "md5sums")
        for line in sums.splitlines():
            expected, _, path = line.partition("  ")
            content = (root / path).read_bytes()
            assert hashlib.md5(content, usedforsecurity=False).hexdigest() == expected, path
        pins.append(pinned(name, version[1], deb(control, _data(root, listed), sums), directory))
    return pins


def _info(root: Path, name: str, kind: str) -> str:
    info = root / "var/lib/dpkg/info"
    file = info / f"{name}:amd64.{kind}"
    return (file if file.exists() else info / f"{name}.{kind}").read_text()


def _data(root: Path, listed: list[str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in listed:
            source = root / path.lstrip("/")
            if path in _MERGED:
                header = tarfile.TarInfo(f".{path}")
                header.type, header.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(header)
            elif path != "/.":
                archive.add(source, f".{path}", recursive=False)
    return content.getvalue()


# --- from a Python installation ---------------------------------------------------------------------------------------


def wheels(wanted: list[Requirement], directory: Path) -> str:
    """Make wheels of this installation again; return a requirements file with their hashes."""
    lines = []
    for requirement in wanted:
        distribution = metadata.distribution(requirement.name)
        assert distribution.version == requirement.version
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(distribution.files or (), key=str):
                used = "__pycache__" not in path.parts and ".." not in path.parts and path.name not in _BY_INSTALLERS
                if used:
                    archive.writestr(zipfile.ZipInfo(str(path), _ALWAYS), path.read_binary())
        tags = re.findall(r"^Tag: ([^-\s]+)-([^-\s]+)-(\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE)
        tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
        name = f"{requirement.name.replace('-', '_')}-{requirement.version}-{tag}.whl"
        (directory / name).write_bytes(content.getvalue())
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        lines.append(f"{requirement.name}=={requirement.version} \\\n    --hash=sha256:{digest}\n")
    return "".join(lines)
