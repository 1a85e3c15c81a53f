"""`herder store`: back up and restore the data of the embedded API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.app.paths import data_dir_option, data_directory
from herder.cli.examples import examples

if TYPE_CHECKING:
    from herder.snapshots.s3.client import Bucket


@click.group(epilog=examples("herder store backup herder.backup", "herder store restore herder.backup"))
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
@click.option(
    "--s3-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Upload the backup too. JSON file with mode 0600 and the keys endpoint, endpointCA, skipSSLVerify, bucket, "
    "region, folder, accessKey and secretKey.",
)
def backup(file: Path, data_dir: Path | None, s3_config: Path | None) -> None:
    """Back up all data to FILE. The server can keep running.

    Secrets stay encrypted in the backup. Store their key, the file encryption.key in the data directory, separately.
    """
    from herder.engine.store import StoreError
    from herder.engine.store.maintenance.backup import backup_directory
    from herder.snapshots.errors import SnapshotError

    try:
        with _bucket(s3_config) as bucket:
            revision = backup_directory((data_dir or data_directory()) / "store", file, now=time.time())
            click.echo(f"Backed up revision {revision} to {file}")
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


@command.command(epilog=examples("herder store restore /backups/herder-2026-01-31.backup"))
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@data_dir_option
def restore(file: Path, data_dir: Path | None) -> None:
    """Replace all data with the backup FILE. The server must be stopped.

    Revisions continue above every revision that the server has used. Clients that resume a watch must list again.
    """
    from herder.engine.store import StoreError
    from herder.engine.store import restore as restore_store

    try:
        restore_store(file, (data_dir or data_directory()) / "store")
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Restored {file}; start the server with: herder up")
