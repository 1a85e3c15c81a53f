"""`herder store`: copies of the embedded API server's data, and the way back."""

from __future__ import annotations

import time
from pathlib import Path

import click

from herder.cli.places import data_dir_option, data_directory


@click.group()
def command() -> None:
    """Back up and restore the embedded API server's data."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@data_dir_option
def backup(file: Path, data_dir: Path | None) -> None:
    """Copy everything to FILE; the server may go on meanwhile.

    Secrets stay encrypted in the copy. Their key is the file encryption.key in the data directory: keep it elsewhere.
    """
    from herder.engine.store import StoreError
    from herder.engine.store.backup import backup_directory

    try:
        revision = backup_directory((data_dir or data_directory()) / "store", file, now=time.time())
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"backed up to {file} as of revision {revision}")


@command.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@data_dir_option
def restore(file: Path, data_dir: Path | None) -> None:
    """Put the data of FILE in place of what is there; the server must be stopped.

    Revisions go on from beyond any that were ever given out, so clients that resume a watch are told to list afresh.
    """
    from herder.engine.store import StoreError
    from herder.engine.store import restore as restore_store

    try:
        restore_store(file, (data_dir or data_directory()) / "store")
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    click.echo("restored; start 'herder up' again")
