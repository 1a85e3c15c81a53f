"""`herder down`: stop the server that uses a data directory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import click

from herder.app.host.paths import data_dir_option, data_directory
from herder.cli.examples import examples


@click.command(epilog=examples("herder down", "herder down --data-dir /tmp/herder"))
@data_dir_option
@click.option("--timeout", default=30.0, metavar="SECONDS", help="Maximum time to wait.  [default: 30]")
def command(data_dir: Path | None, timeout: float) -> None:
    """Stop the `herder up` that uses the data directory, and wait until it has ended.

    Clusters and machines keep running.
    """
    from herder.engine.store.directory import lock_holder

    directory = data_dir or data_directory()
    holder = lock_holder(directory / "store")
    if holder is None:
        raise click.ClickException(f"no server uses {directory}; start one with: herder up")
    try:
        os.kill(holder, signal.SIGTERM)
    except PermissionError:
        raise click.ClickException(f"process {holder} belongs to another user; run this command as that user") from None
    except ProcessLookupError:
        pass
    deadline = time.monotonic() + timeout
    while lock_holder(directory / "store") == holder:
        if time.monotonic() > deadline:
            raise click.ClickException(f"process {holder} has not stopped after {timeout:g} s; see its log")
        time.sleep(0.1)
    click.echo(f"stopped (process {holder}); clusters and machines keep running")
