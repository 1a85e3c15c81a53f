"""`herder store`: back up and restore the data of the embedded API server."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.app.host.paths import data_dir_option, data_directory
from herder.cli.examples import examples
from herder.cli.get import print_data
from herder.cli.table import print_table

if TYPE_CHECKING:
    from herder.snapshots.config import Config
    from herder.snapshots.directory import Directory
    from herder.snapshots.records import Record
    from herder.snapshots.s3.client import Bucket


s3_option = click.option(
    "--s3-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also use S3. JSON file with mode 0600 and the keys endpoint, endpointCA, skipSSLVerify, bucket, region, "
    "folder, accessKey and secretKey.",
)
backup_dir_option = click.option(
    "--backup-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of scheduled backups. Default: backups in the data directory.",
)


@click.group(
    epilog=examples("herder store backup herder.backup", "herder store backups", "herder store restore herder.backup")
)
def command() -> None:
    """Back up and restore the data of the embedded API server."""


@command.command(
    epilog=examples(
        "herder store backup /backups/herder-$(date +%F).backup",
        "herder store backup /backups/herder-$(date +%F).backup --s3-config s3.json",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@data_dir_option
@s3_option
def backup(file: Path, data_dir: Path | None, s3_config: Path | None) -> None:
    """Back up all data to FILE. The server can keep running.

    Secrets stay encrypted in the backup. Store their key, the file encryption.key in the data directory, separately.
    """
    from herder.engine.store import StoreError
    from herder.engine.store.maintenance.backup import backup_directory
    from herder.snapshots.errors import SnapshotError
    from herder.snapshots.files import digest_of

    try:
        with _bucket(s3_config) as bucket:
            revision = backup_directory((data_dir or data_directory()) / "store", file, now=time.time())
            click.echo(f"Backed up revision {revision} to {file}")
            click.echo(f"SHA-256: {digest_of(file).sha256}; keep it elsewhere than the backup")
            if bucket is not None:
                click.echo(f"Uploaded it to {_upload(bucket, file)}")
    except (StoreError, SnapshotError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _bucket(s3_config: Path | None) -> Iterator[Bucket | None]:
    """Check the bucket before the backup is written."""
    if s3_config is None:
        yield None
        return
    from herder.snapshots.config import load_s3
    from herder.snapshots.s3.client import Bucket

    with closing(Bucket(load_s3(s3_config))) as bucket:
        bucket.check()
        yield bucket


def _upload(bucket: Bucket, file: Path) -> str:
    from herder.snapshots.files import digest_of

    folder = bucket.config.folder
    key = f"{folder}/{file.name}" if folder else file.name
    bucket.put(key, file, digest_of(file))
    return f"s3://{bucket.config.bucket}/{key}"


# --- list -------------------------------------------------------------------------------------------------------------


@command.command(epilog=examples("herder store backups", "herder store backups --s3-config s3.json -o json"))
@data_dir_option
@backup_dir_option
@s3_option
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), help="Output format: yaml or json. Default: table."
)
def backups(data_dir: Path | None, backup_dir: Path | None, s3_config: Path | None, output: str | None) -> None:
    """List scheduled backups with their hashes, newest first."""
    from herder.snapshots.operations import list_all

    with _explained():
        config = _config(data_dir, backup_dir, s3_config)
        found = [_vouched(config, each) for each in list_all(config)]
    records = [each.document() for each in sorted(found, key=lambda each: each.created_at, reverse=True)]
    if output is not None:
        print_data({"backups": records}, output)
    elif records:
        print_table(_COLUMNS, (tuple(str(each[key]) for key in _KEYS) for each in records))
    else:
        click.echo("No backups found; make them with: herder up --backup-schedule", err=True)


def _vouched(config: Config, record: Record) -> Record:
    """Say of an object in S3 if only the bucket says what it is."""
    from herder.app.store.backups import Authenticator
    from herder.snapshots.directory import Directory

    assert config.store is not None
    if record.message or not record.location.startswith("s3:") or _local_hash(Directory(config.directory), record.name):
        return record
    is_genuine = Authenticator(config.store.encryption_key).is_genuine(record)
    return record if is_genuine else replace(record, message="no manager with this encryption key has made it")


def _local_hash(directory: Directory, name: str) -> str:
    """The SHA-256 that this host knows of a backup; empty if it has none."""
    return next((each.sha256 for each in directory.records() if each.name == name), "")


_COLUMNS = ("NAME", "CREATED", "REVISION", "SIZE", "STATUS", "SHA256", "LOCATION", "MESSAGE")
_KEYS = ("name", "createdAt", "revision", "size", "status", "sha256", "location", "message")


def _config(data_dir: Path | None, backup_dir: Path | None, s3_config: Path | None) -> Config:
    from herder.app.store.backups import backup_config, default_directory
    from herder.snapshots.config import load_s3

    directory = (data_dir or data_directory()).absolute()
    s3 = load_s3(s3_config) if s3_config else None
    return backup_config(directory, backup_dir or default_directory(directory), s3=s3)


@contextmanager
def _explained() -> Iterator[None]:
    from herder.engine.store import StoreError
    from herder.snapshots.errors import SnapshotError, describe

    try:
        yield
    except (StoreError, SnapshotError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(describe(error)) from error


# --- restore ----------------------------------------------------------------------------------------------------------


@command.command(
    epilog=examples(
        "herder store restore /backups/herder-2026-01-31.backup",
        "herder store restore herder-manager-1769817600.gz",
        "herder store restore herder-manager-1769817600.gz --s3-config s3.json",
    )
)
@click.argument("backup", metavar="FILE|NAME")
@data_dir_option
@backup_dir_option
@s3_option
@click.option(
    "--sha256",
    metavar="HEX",
    callback=lambda _context, _option, value: _checked_hash(value),
    help="SHA-256 of the backup FILE, or of the compressed backup NAME. Any other file is refused.",
)
@click.option(
    "--insecure-skip-verify",
    is_flag=True,
    help="Restore a backup from S3 although it is not authenticated: whoever can write to the bucket could have "
    "replaced it.",
)
def restore(
    backup: str,
    data_dir: Path | None,
    backup_dir: Path | None,
    s3_config: Path | None,
    sha256: str,
    insecure_skip_verify: bool,
) -> None:
    """Replace all data with a backup: a FILE, or the NAME of a scheduled one. The server must be stopped.

    With --s3-config, the backup NAME is downloaded from S3. It must be authentic: made with the file encryption.key of
    the data directory, or with the hash of --sha256. The file encryption.key of the
    data directory must contain the keys of the backup. Revisions continue above every revision that the server has
    used. When the server starts, all clusters are observe-only until `herder resume cluster`.
    """
    from herder.engine.store import restore as restore_store
    from herder.snapshots.stores.embedded import StoreData

    directory = (data_dir or data_directory()).absolute()
    with _explained():
        config = _config(data_dir, backup_dir, s3_config)
        assert config.store is not None
        with _fetched(config, backup, sha256, skips_verification=insecure_skip_verify) as file:
            StoreData(config.store).verify(file)
            restore_store(file, directory / "store")
    click.echo(f"Restored {backup}; start the server with: herder up")
    click.echo("All clusters are observe-only then; compare and resume them with: herder resume cluster --all --diff")
    if not (directory / "pki" / "ca.key").exists():
        click.echo(
            f"Warning: {directory / 'pki'} contains no CA; restore that directory before the first start: agents trust "
            "this CA, and their tokens are signed with a key there",
            err=True,
        )


def _checked_hash(value: str | None) -> str:
    found = (value or "").lower()
    if found and not re.fullmatch("[0-9a-f]{64}", found):
        raise click.BadParameter("must be 64 hexadecimal digits")
    return found


def _unpacked(file: Path, scratch: Path) -> Path:
    """A scheduled backup that was downloaded by other means is still compressed."""
    from herder.snapshots.files import decompress
    from herder.snapshots.names import is_compressed
    from herder.snapshots.restore import MAX_UNPACKED

    if not is_compressed(file.name):
        return file
    decompress(file, scratch / file.stem, MAX_UNPACKED)
    return scratch / file.stem


def _check_authentic(config: Config, record: Record) -> None:
    from herder.app.store.backups import Authenticator

    assert config.store is not None
    if not Authenticator(config.store.encryption_key).is_genuine(record):
        raise click.ClickException(
            f"backup {record.name}: it is not authenticated by a key in {config.store.encryption_key}, so whoever can "
            "write to the bucket could have replaced it; restore that file first, pass --sha256 with the hash that the "
            "manager logged, or --insecure-skip-verify"
        )


@contextmanager
def _fetched(config: Config, backup: str, sha256: str, *, skips_verification: bool) -> Iterator[Path]:
    """The file of a backup; of a scheduled one, a verified and unpacked copy beside the backups."""
    from herder.snapshots.directory import Directory
    from herder.snapshots.files import digest_of
    from herder.snapshots.names import check_name
    from herder.snapshots.operations import source_of
    from herder.snapshots.restore import Workplace, fetch

    if config.s3 is None and Path(backup).is_file():
        if sha256 and (found := digest_of(Path(backup)).sha256) != sha256:
            raise click.ClickException(f"{backup}: its SHA-256 is {found} instead of {sha256}; use another copy")
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=Path(backup).absolute().parent) as scratch:
            yield _unpacked(Path(backup), Path(scratch))
        return
    if config.s3 is None and not (config.directory / backup).is_file():
        raise click.ClickException(f"backup {backup}: no such file, and not in {config.directory}; check --backup-dir")
    place = Workplace(config.directory)
    directory, is_remote = Directory(config.directory), config.s3 is not None
    with directory.locked():
        try:
            expected = sha256 or (_local_hash(directory, backup) if is_remote else "")
            with source_of(config, is_remote) as remote:
                file, record = fetch(config, place, check_name("backup", backup), remote, expected)
            if is_remote and not expected and not skips_verification:
                _check_authentic(config, record)
            yield file
        finally:
            place.remove()
