"""`herder wait cluster`: print the progress of an operation until it is complete."""

from __future__ import annotations

import click

from herder.app.host.paths import kubeconfig_option, workspace_option
from herder.cli.client import ask
from herder.cli.cluster.options import DELETED, READY, Operation
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
@click.option(
    "--uid",
    metavar="UID",
    default="",
    help="With --for deleted: UID of the Cluster, whose owners may not read it anymore.",
)
@kubeconfig_option
def cluster(name: str, namespace: str, until: str, timeout: float, uid: str, kubeconfig: str | None) -> None:
    """Print the progress of the cluster NAME until it is ready or deleted.

    The exit status is 0 if it is, 1 after an error or timeout, and 130 after Ctrl-C.
    """

    def say(line: str) -> None:
        click.echo(escaped(line))

    operation = Operation(namespace, name, until, uid, is_accepted=True)
    with operation.continues_in_background():
        ask(kubeconfig, lambda client, _here: operation.wait(client, timeout, say))
