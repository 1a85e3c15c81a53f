"""Copy files between this host and machines, with SFTP, or with cat and tar if a machine has no SFTP."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import posixpath
import shlex
import stat
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import asyncssh

from herder.machine.errors import MachineError
from herder.machine.ssh.client import connection_to
from herder.machine.ssh.hosts import HostKeys
from herder.machine.state.saved_machine import SavedMachine, private_key

_PIECE = 1 << 20

Find = Callable[[str], SavedMachine]
Remember = Callable[[SavedMachine], None]


def copy(source: str, target: str, find: Find, *, recursive: bool = False, remember: Remember | None = None) -> None:
    """Copy between `[user@]machine:path` and local paths; `find` returns a machine by name."""
    (giver, source), (taker, target) = _end(source, find), _end(target, find)
    if giver is None and taker is None:
        raise MachineError(
            f"neither {source} nor {target} is on a machine", "use MACHINE:PATH for at least one of them"
        )
    with tempfile.TemporaryDirectory(prefix="herder-copy-") as between:
        if giver is not None:
            here = target if taker is None else between
            asyncio.run(_transfer(giver, remember, lambda way: way.get(source, here, recursive)))
            source = os.path.join(between, os.path.basename(source.rstrip("/")))
        if taker is not None:
            there = target or "."
            asyncio.run(_transfer(taker, remember, lambda way: way.put(source, there, recursive)))


def _end(place: str, find: Find) -> tuple[SavedMachine | None, str]:
    head, colon, path = place.partition(":")
    if not colon or "/" in head:
        return None, place
    user, at, name = head.rpartition("@")
    if name == "localhost":
        return None, path
    machine = find(name)
    if at:
        machine = dataclasses.replace(machine, reach=dataclasses.replace(machine.reach, user=user))
    return machine, path


_NO_DIRECTORY = "{ echo 'it is a directory: copy it with -r' >&2; exit 1; }"


class _Way(Protocol):
    """File transfer over a connection; a target directory receives the copy."""

    async def get(self, source: str, target: str, recursive: bool) -> None: ...

    async def put(self, source: str, target: str, recursive: bool) -> None: ...


async def _transfer(machine: SavedMachine, remember: Remember | None, act: Callable[[_Way], Awaitable[None]]) -> None:
    hosts = HostKeys(machine.reach, machine.files, remember=lambda: remember(machine) if remember else None)
    async with connection_to(machine.reach, private_key(machine.config, machine.files), hosts) as connection:
        try:
            try:
                client = await connection.start_sftp_client()
            except asyncssh.ChannelOpenError:
                await act(_ByCommands(connection))
                return
            async with client:
                await act(_BySftp(client))
        except (asyncssh.Error, OSError, tarfile.TarError) as error:
            raise MachineError(f"the copy failed: {error}") from error


class _BySftp:
    def __init__(self, client: asyncssh.SFTPClient) -> None:
        self._client = client

    async def get(self, source: str, target: str, recursive: bool) -> None:
        attributes = await self._client.stat(source)
        if _is_directory(attributes) and not recursive:
            raise MachineError(f"{source} is a directory", "copy it with -r")
        name = os.path.basename(source.rstrip("/"))
        here = Path(target, name) if os.path.isdir(target) else Path(target)
        await self._fetch(source, here, attributes, here.resolve())

    async def _fetch(self, source: str, here: Path, attributes: asyncssh.SFTPAttrs, top: Path) -> None:
        """Fetch only directories and file contents: symlinks chosen by the machine would decide where later files are
        written. Symlinks that exist here are not followed out of `top`, because the machine chooses the names.
        """
        _check_within(here, top)
        if not _is_directory(attributes):
            await self._fetch_file(source, here)
            return
        here.mkdir(exist_ok=True)
        async for entry in self._client.scandir(source):
            name = os.fsdecode(entry.filename)
            if name in (".", ".."):
                continue
            if not name or "/" in name or os.sep in name or "\0" in name:
                raise MachineError(f"the machine sent a file that lies elsewhere: {name}")
            path = posixpath.join(source, name)
            is_link = entry.attrs.type == asyncssh.FILEXFER_TYPE_SYMLINK
            found = await self._followed(path) if is_link else entry.attrs
            if found is not None:
                await self._fetch(path, here / name, found, top)

    async def _followed(self, link: str) -> asyncssh.SFTPAttrs | None:
        """Return the file behind a symlink; None for anything else, since links to directories may be cyclic."""
        try:
            found = await self._client.stat(link)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPPermissionDenied):
            return None
        return found if found.type == asyncssh.FILEXFER_TYPE_REGULAR else None

    async def _fetch_file(self, source: str, here: Path) -> None:
        async with self._client.open(source, "rb") as file:
            with here.open("wb") as copied:
                while isinstance(content := await file.read(_PIECE), bytes) and content:
                    copied.write(content)

    async def put(self, source: str, target: str, recursive: bool) -> None:
        await self._client.put(source, target, recurse=recursive)


class _ByCommands:
    """Transfer with cat and tar, which every machine has."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self._connection = connection

    async def get(self, source: str, target: str, recursive: bool) -> None:
        place, name = shlex.quote(source), os.path.basename(source.rstrip("/"))
        here = Path(target, name) if os.path.isdir(target) else Path(target)
        if recursive:
            content = await self._run(f"cd -- {place} && exec tar -cf - .")
            await asyncio.to_thread(_unpack, content, here)
        else:
            content = await self._run(f"[ ! -d {place} ] || {_NO_DIRECTORY}; exec cat -- {place}")
            await asyncio.to_thread(here.write_bytes, content)

    async def put(self, source: str, target: str, recursive: bool) -> None:
        name = shlex.quote(os.path.basename(os.path.abspath(source)))
        into = f't={shlex.quote(target)}; [ ! -d "$t" ] || t="$t"/{name}'
        if os.path.isdir(source):
            if not recursive:
                raise MachineError(f"{source} is a directory", "copy it with -r")
            content = await asyncio.to_thread(_packed, Path(source))
            await self._run(f'{into}; mkdir -p -- "$t" && cd -- "$t" && exec tar -xf -', content)
        else:
            content = await asyncio.to_thread(Path(source).read_bytes)
            mode = stat.S_IMODE(os.stat(source).st_mode)
            await self._run(f'{into}; cat >"$t" && chmod {mode:o} -- "$t"', content)

    async def _run(self, command: str, content: bytes = b"") -> bytes:
        done = await self._connection.run(command, input=content, encoding=None)
        if done.returncode:
            said = done.stderr.decode(errors="replace") if isinstance(done.stderr, bytes) else ""
            raise MachineError(f"the copy failed: {said.strip() or f'exit status {done.returncode}'}")
        return done.stdout if isinstance(done.stdout, bytes) else b""


def _is_directory(attributes: asyncssh.SFTPAttrs) -> bool:
    return attributes.type == asyncssh.FILEXFER_TYPE_DIRECTORY


def _check_within(place: Path, top: Path) -> None:
    if not place.resolve().is_relative_to(top):
        raise MachineError(
            f"the machine sent a file outside of the target directory: {place}", "remove the local symlink"
        )


def _packed(directory: Path) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(directory, arcname=".")
    return content.getvalue()


def _unpack(content: bytes, directory: Path) -> None:
    """Extract only files and directories, none outside: the machine is untrusted."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            place = directory / member.name
            _check_within(place, directory.resolve())
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isfile() and (file := archive.extractfile(member)) is not None:
                place.write_bytes(file.read())
                place.chmod(member.mode & 0o777)
