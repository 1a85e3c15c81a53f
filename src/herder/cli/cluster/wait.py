"""`herder wait cluster`: print the progress of an operation until it is complete."""

from __future__ import annotations

import click

from herder.app.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.options import DELETED, READY, continues_in_background, wait_for
from herder.cli.examples import examples
from herder.cli.resources import ResourceGroup
from herder.cli.terminal import escaped

EXAMPLES = examples(
    "herder wait cluster meadow",
    "herder wait cluster meadow --for deleted --timeout 600",
)


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Wait until a cluster is ready or deleted."""


@command.command(epilog=EXAMPLES)
@click.argument("name")
@workspace_option
@click.option(
    "--for",
    "until",
    type=click.Choice([READY, DELETED]),
    default=READY,
    show_default=True,
    help="State to wait for: ready (all changes are applied on every machine) or deleted.",
)
@click.option("--timeout", default=3600.0, metavar="SECONDS", help="Maximum time to wait.  [default: 3600]")
@kubeconfig_option
def cluster(name: str, namespace: str, until: str, timeout: float, kubeconfig: str | None) -> None:
    """Print the progress of the cluster NAME until it is ready or deleted.

    The exit status is 0 if it is, 1 after an error or timeout, and 130 after Ctrl-C.
    """

    def say(line: str) -> None:
        click.echo(escaped(line))

    with continues_in_background(namespace, name, until, lambda: True):
        ask(kubeconfig, lambda client, _here: wait_for(client, namespace, name, until, timeout, say))
