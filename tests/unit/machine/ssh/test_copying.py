"""Copies from a machine whose SSH server is hostile."""

from __future__ import annotations

import asyncio
import contextlib
import io
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest

from herder.machine.driver import Reach
from herder.machine.errors import MachineError
from herder.machine.ssh.copying import copy
from herder.machine.ssh.keys import new_key_pair
from herder.machine.state.saved_machine import SavedMachine

PLANTED = b"not asked for\n"

Listing = dict[str, list[tuple[str, str]]]
"""Directory → entries: their names, and what they are: "dir", "file" or "-> target"."""


class Hostile(asyncssh.SFTPServer):
    """An SFTP server that lists the entries of a test, including duplicate names."""

    listing: Listing

    def _kind(self, path: bytes) -> str:
        place = path.decode()
        if place in self.listing:
            return "dir"
        parent, _, name = place.rpartition("/")
        return next((kind for entry, kind in self.listing.get(parent, ()) if entry == name), "file")

    def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return _attributes(self._kind(path))

    lstat = stat  # links stay links for clients that would follow them

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        for name, kind in self.listing.get(path.decode(), ()):
            yield asyncssh.SFTPName(name.encode(), attrs=_attributes(kind))

    def readlink(self, path: bytes) -> bytes:
        parent, _, name = path.decode().rpartition("/")
        found = next(kind for entry, kind in self.listing[parent] if entry == name)
        return found.removeprefix("-> ").encode()

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        return io.BytesIO(PLANTED)


def _attributes(kind: str) -> asyncssh.SFTPAttrs:
    types = {"dir": (stat.S_IFDIR | 0o755, asyncssh.FILEXFER_TYPE_DIRECTORY)}
    types["file"] = (stat.S_IFREG | 0o644, asyncssh.FILEXFER_TYPE_REGULAR)
    mode, type_ = types.get(kind, (stat.S_IFLNK | 0o777, asyncssh.FILEXFER_TYPE_SYMLINK))
    return asyncssh.SFTPAttrs(type=type_, size=len(PLANTED), permissions=mode)


@contextlib.contextmanager
def machine(listing: Listing) -> Iterator[SavedMachine]:
    """Serve on loopback from a separate thread, since `copy` runs its own event loop."""
    client_key, host_key = new_key_pair(), new_key_pair()
    started: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()
    served = type("Served", (Hostile,), {"listing": listing})

    async def serve() -> None:
        ended = asyncio.Event()
        async with await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.import_private_key(host_key[0])],
            authorized_client_keys=asyncssh.import_authorized_keys(client_key[1].decode()),
            sftp_factory=served,
        ) as listener:
            started.append((listener.get_port(), asyncio.get_running_loop(), ended))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    port, loop, ended = started[0]
    reach = Reach("127.0.0.1", port, "root", (host_key[1].decode().strip(),))
    try:
        yield SavedMachine("hostile", "generic", {}, {"id_rsa": client_key[0]}, reach)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


def fetch(listing: Listing, source: str, target: Path, *, recursive: bool = True) -> None:
    with machine(listing) as found, contextlib.suppress(MachineError):
        copy(f"hostile:{source}", str(target), lambda _name: found, recursive=recursive)


def test_links_on_a_machine_cannot_escape_the_copy(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    listing: Listing = {
        "/logs": [("a", "dir")],
        "/logs/a": [("b", "dir")],
        "/logs/a/b": [("up", "-> ../.."), ("out", "-> up/../.."), ("out", "dir")],
        "/logs/a/b/out": [("planted", "file")],
    }
    fetch(listing, "/logs", target)
    assert not (tmp_path / "planted").exists()


def test_local_links_do_not_lead_out_of_the_copy(tmp_path: Path) -> None:
    """The machine chooses the names of what it sends, and may know those of an earlier copy."""
    outside, target = tmp_path / "outside", tmp_path / "target" / "logs"
    outside.mkdir()
    target.mkdir(parents=True)
    (outside / "own").write_text("own")
    (target / "file").symlink_to(outside / "own")
    (target / "missing").symlink_to(outside / "planted")
    (target / "dir").symlink_to(outside)
    for listed in (("file", "file"), ("missing", "file"), ("dir", "dir")):
        fetch({"/logs": [listed], "/logs/dir": [("planted", "file")]}, "/logs", target.parent)
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("own", "own")]


def test_local_links_within_the_copy_are_followed(tmp_path: Path) -> None:
    (tmp_path / "logs" / "old").mkdir(parents=True)
    (tmp_path / "logs" / "current").symlink_to("old")
    fetch({"/logs": [("current", "dir")], "/logs/current": [("a", "file")]}, "/logs", tmp_path)
    assert (tmp_path / "logs" / "old" / "a").read_bytes() == PLANTED


def test_a_single_file_never_becomes_a_link(tmp_path: Path) -> None:
    """A later write to the copy would write to the target of the link."""
    (tmp_path / "own").write_text("own")
    fetch({"/etc": [("motd", "-> own")]}, "/etc/motd", tmp_path, recursive=False)
    assert not (tmp_path / "motd").is_symlink()


@pytest.mark.parametrize("name", ["../planted", "/planted", "..", "x/../../planted"])
def test_names_that_contain_a_path_are_rejected(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    fetch({"/logs": [(name, "file")]}, "/logs", target)
    assert not (tmp_path / "planted").exists()


def test_linked_files_are_copied_and_linked_directories_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Hostile,
        "stat",
        lambda _self, path: _attributes("dir" if path.endswith(b"loop") else "file" if path != b"/logs" else "dir"),
    )
    fetch({"/logs": [("current", "-> old"), ("old", "file"), ("loop", "-> .")]}, "/logs", tmp_path)
    assert sorted(entry.name for entry in (tmp_path / "logs").iterdir()) == ["current", "old"]
    assert (tmp_path / "logs" / "current").read_bytes() == PLANTED
