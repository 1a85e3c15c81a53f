"""Save, list, delete and check snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from herder.snapshots.config import Config
from herder.snapshots.data import Data
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError
from herder.snapshots.files import compress, digest_of, room
from herder.snapshots.names import COMPRESSED, EARLIEST, MAX_AHEAD, ON_DEMAND, check_name, is_ahead, seconds_of, series
from herder.snapshots.records import FAILED, Record
from herder.snapshots.remote import Remote
from herder.snapshots.restore import Workplace, fetch

MAC = "mac"
"""Key of the metadata: a MAC of the name and the SHA-256."""


@contextmanager
def remote_of(config: Config, *, required: bool = False) -> Iterator[Remote | None]:
    """Open the bucket of the configuration, and check it first: its errors come before all effects."""
    if config.s3 is None:
        if required:
            raise SnapshotError("s3: is not set in the configuration")
        yield None
        return
    remote = Remote(config.s3)
    try:
        remote.bucket.check()
        yield remote
    finally:
        remote.close()


def save(
    config: Config, data: Data, name: str, authenticate: Callable[[str, str], str] = lambda _name, _sha256: ""
) -> list[Record]:
    """Take a snapshot, verify it, upload it and apply the retention, which does not count snapshots on demand.

    `authenticate` returns a MAC of the name and the SHA-256, which is stored in the metadata.
    """
    if config.disabled and name != ON_DEMAND:
        raise SnapshotError(f"snapshot {name}: snapshots are disabled; only --name {ON_DEMAND} is saved")
    directory = Directory(config.directory)
    with directory.locked(), remote_of(config) as remote:
        Workplace(config.directory).refuse_unfinished()
        directory.clean()
        full_name = _new_name(config, directory, remote, check_name("name", name))
        try:
            record = directory.commit(_authenticated(_write(config, data, directory, full_name), authenticate))
            records = [record]
            if remote is not None:
                remote.abort_uploads(f"{name}-{config.node}-")
                records.append(remote.upload(record, config.directory / full_name))
        except BaseException:
            directory.discard(full_name)
            raise
        problem = _apply_retention(config, directory, remote, name, full_name) if name != ON_DEMAND else ""
    return [replace(each, message=problem) for each in records]


def _new_name(config: Config, directory: Directory, remote: Remote | None, name: str) -> str:
    """Return a name that is newer than all others of its series, except for those in the future.

    Otherwise, after two saves in one second or a small step of the clock, the retention could delete the new snapshot.
    """
    own, now = series(name, config.node), max(int(time.time()), EARLIEST)
    names = [*(each.name for each in directory.records()), *(remote.sizes() if remote else ())]
    taken = {seconds_of(each) for each in names if own.fullmatch(each)}
    seconds = max(now, max((each for each in taken if each <= now + MAX_AHEAD), default=0) + 1)
    while seconds in taken:
        seconds += 1
    return f"{name}-{config.node}-{seconds}{COMPRESSED if config.compress else ''}"


def _write(config: Config, data: Data, directory: Directory, name: str) -> Record:
    """Write the file of a new snapshot and return its record."""
    _check_room(config, data, name)
    target = directory.partial(name)
    plain = target if not config.compress else directory.partial(f"{name}.plain")
    data.save(plain)
    plain.chmod(0o600)
    content = data.verify(plain)
    unpacked = plain.stat().st_size
    if plain != target:
        compress(plain, target)
        plain.unlink()
    digest = digest_of(target)
    return Record(
        name,
        node=config.node,
        created_at=seconds_of(name),
        size=digest.size,
        sha256=digest.sha256,
        revision=content.revision,
        version=content.version,
        unpacked_size=unpacked,
        metadata=config.metadata,
    )


def _authenticated(record: Record, authenticate: Callable[[str, str], str]) -> Record:
    mac = authenticate(record.name, record.sha256)
    return replace(record, metadata={**record.metadata, MAC: mac}) if mac else record


def _check_room(config: Config, data: Data, name: str) -> None:
    """Refuse a snapshot that would fill the disk: etcd and the kubelet stop working when it is full."""
    needed = data.size() * (2 if config.compress else 1)  # in the worst case: the copy, and the packed copy beside it
    free = room(config.directory)
    if needed > free:
        raise SnapshotError(
            f"snapshot {name}: the disk is full: it needs up to {_mebibytes(needed)}, and {config.directory} has room "
            f"for {_mebibytes(free)}; free some space, lower the retention, or save to another disk"
        )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _apply_retention(config: Config, directory: Directory, remote: Remote | None, name: str, new: str) -> str:
    """Delete the oldest snapshots of this series. A failure is reported, but the new snapshot exists."""
    own = series(name, config.node)
    try:
        local = [each.name for each in directory.records() if own.fullmatch(each.name)]
        for old in _beyond(local, config.retention, new):
            directory.delete(old)
        if remote is not None and remote.config.retention:
            names = [each for each in remote.sizes() if own.fullmatch(each)]
            for old in _beyond(names, remote.config.retention, new):
                remote.delete(old)
    except (SnapshotError, OSError) as error:
        return f"retention: old snapshots could not be deleted: {error}"
    return ""


def _beyond(names: list[str], retention: int, new: str) -> list[str]:
    """Return the names of the oldest snapshots; a retention of 0 keeps all.

    Snapshots in the future are counted by themselves. They would count as the newest ones, and others would be deleted
    in their place.
    """
    now = time.time()
    ahead = [each for each in names if each != new and is_ahead(each, now)]
    others = set(names) - set(ahead)
    return [old for group in (others, ahead) for old in sorted(group, key=seconds_of)[:-retention]] if retention else []


def list_all(config: Config) -> list[Record]:
    local = Directory(config.directory).records()
    by_name = {each.name: each for each in local if each.sha256}
    with remote_of(config) as remote:
        return [*local, *(_compared(each, by_name.get(each.name)) for each in (remote.records() if remote else ()))]


def _compared(record: Record, local: Record | None) -> Record:
    """The record of an object, with the metadata of the local file of its name: that in S3 could have been replaced."""
    if local is None or record.status == FAILED:
        return record
    if record.size == local.size and record.sha256 in ("", local.sha256):
        return local.at(record.location)
    message = "it is not the file that this node saved: size or SHA-256 differ from those of the local file"
    return replace(local, location=record.location, status=FAILED, message=message)


def delete(config: Config, name: str, *, s3: bool) -> None:
    directory = Directory(config.directory)
    check_name("snapshot", name)
    with directory.locked():
        Workplace(config.directory).refuse_unfinished()
        if not s3:
            directory.delete(name)
            return
        with remote_of(config, required=True) as remote:
            assert remote is not None
            remote.delete(name)


def check(config: Config, data: Data, name: str, *, s3: bool, sha256: str = "") -> Record:
    """Read the whole snapshot, as a restore would, and change nothing. `sha256`: see `fetch`."""
    check_name("snapshot", name)
    with Directory(config.directory).locked():
        place = Workplace(config.directory)
        place.refuse_unfinished()
        try:
            with source_of(config, s3) as remote:
                file, record = fetch(config, place, name, remote, sha256)
            return _verified(record, data, file)
        finally:
            place.clear()


@contextmanager
def source_of(config: Config, s3: bool) -> Iterator[Remote | None]:
    if not s3:
        yield None
        return
    with remote_of(config, required=True) as remote:
        yield remote


def _verified(record: Record, data: Data, file: Path) -> Record:
    content = data.verify(file)
    if record.sha256 and content.revision != record.revision:
        raise SnapshotError(
            f"snapshot {record.name}: has revision {content.revision} instead of {record.revision}; the file is corrupt"
        )
    return replace(record, revision=content.revision, version=content.version)
