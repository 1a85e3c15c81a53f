"""`herder store`: back up and restore the data of the embedded API server."""

from __future__ import annotations

import time
from pathlib import Path

import click

from herder.app.paths import data_dir_option, data_directory
from herder.cli.examples import examples


@click.group(epilog=examples("herder store backup herder.backup", "herder store restore herder.backup"))
def command() -> None:
    """Back up and restore the data of the embedded API server."""


@command.command(epilog=examples("herder store backup /backups/herder-$(date +%F).backup"))
@click.argument("file", type=click.Path(path_type=Path))
@data_dir_option
def backup(file: Path, data_dir: Path | None) -> None:
    """Back up all data to FILE. The server can keep running.

    Secrets stay encrypted in the backup. Store their key, the file encryption.key in the data directory, separately.
    """
    from herder.engine.store import StoreError
    from herder.engine.store.maintenance.backup import backup_directory

    try:
        revision = backup_directory((data_dir or data_directory()) / "store", file, now=time.time())
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Backed up revision {revision} to {file}")


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
