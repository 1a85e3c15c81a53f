"""`herder redeploy`: redeploy the node agents of a cluster."""

from __future__ import annotations

import click

from herder.api.rke.operations import AGENTS
from herder.cli.cluster.options import operation_options
from herder.cli.examples import examples
from herder.cli.operations.progress import output_option, run_operation
from herder.cli.resources import ResourceGroup

EXAMPLES = examples("herder redeploy agents meadow", "herder redeploy agents meadow --no-wait -o json")


@click.group(cls=ResourceGroup, epilog=EXAMPLES)
def command() -> None:
    """Redeploy the node agents of a cluster."""


@command.command(epilog=EXAMPLES)
@operation_options
@output_option
def agents(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, output: str | None) -> None:
    """Install the node agent that the manager serves on all machines of CLUSTER, servers first.

    Kubernetes keeps running. Machines that have this agent, or a newer one, are left as they are.
    """
    run_operation(kubeconfig, namespace, name, AGENTS, {}, wait=wait, timeout=timeout, output=output)
