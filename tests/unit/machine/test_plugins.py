"""Downloaded driver programs."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from herder.machine.errors import MachineError
from herder.machine.plugins import install

PROGRAM = b"\x7fELF the program"
NAME = "docker-machine-driver-linode"


def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README", "text")
        archive.writestr(f"dist/{NAME}_linux-amd64", PROGRAM)
    return buffer.getvalue()


def tar_archive(name: str = f"../../{NAME}") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(PROGRAM)
        archive.addfile(entry, io.BytesIO(PROGRAM))
    return buffer.getvalue()


FILES = {
    f"{NAME}-v0.1.16": PROGRAM,
    "driver.zip": zip_archive(),
    "driver.tar.gz": tar_archive(),
    "text": b"#!/bin/sh\n",
    "half.zip": zip_archive()[:40],
    "half.tar.gz": tar_archive()[:40],
    "no-tar.gz": gzip.compress(b"x"),
    "other.tar.gz": tar_archive("something"),
    "unnamed": PROGRAM,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", [f"{NAME}-v0.1.16", "driver.zip", "driver.tar.gz"])
def test_programs_zips_and_tars_are_installed(site: str, tmp_path: Path, name: str) -> None:
    path = install(f"{site}/{name}", hashlib.sha256(FILES[name]).hexdigest(), tmp_path)
    assert path == tmp_path / NAME
    assert path.read_bytes() == PROGRAM
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "download of driver from .* failed"),
        ("text", "in an accepted format"),
        ("half.zip", "damaged archive"),
        ("half.tar.gz", "damaged archive"),
        ("no-tar.gz", "damaged archive"),
        ("other.tar.gz", "contains no program named docker-machine-driver-"),
        ("unnamed", "is not named docker-machine-driver-"),
    ],
)
def test_invalid_downloads_are_rejected_with_the_reason(site: str, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        install(f"{site}/{name}", hashlib.sha256(FILES.get(name, b"")).hexdigest(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_program_without_a_checksum_requires_tls(site: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="does not use TLS"):
        install(f"{site}/driver.zip", "", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_is_rejected(site: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="failed sha256 checksum"):
        install(f"{site}/driver.zip", "0" * 64, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "/etc/passwd", "ftp://127.0.0.1/x"])
def test_only_http_urls_are_accepted(tmp_path: Path, url: str) -> None:
    with pytest.raises(MachineError, match="must start with https:// or http://"):
        install(url, "", tmp_path)
