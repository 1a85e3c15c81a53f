"""`herder rotate`: rotate the certificates or encryption keys of a cluster."""

from __future__ import annotations

import click

from herder.api.rke.operations import CERTIFICATES, ENCRYPTION_KEYS
from herder.cli.client import ask
from herder.cli.cluster.options import (
    check_provisioned,
    existing_cluster,
    namespace_flag,
    operation_options,
    print_line,
)
from herder.cli.confirmation import confirm, yes_option
from herder.cli.examples import examples
from herder.cli.operations.progress import output_option, run_operation
from herder.cli.resources import ResourceGroup
from herder.engine.client.client import Client

CERTIFICATES_EXAMPLES = examples(
    "herder rotate certificates meadow",
    "herder rotate certificates meadow --service kubelet --service api-server",
)
KEYS_EXAMPLES = examples(
    "herder rotate encryption-keys meadow",
    "herder rotate encryption-keys meadow --yes -o json",
)


@click.group(
    cls=ResourceGroup, epilog=examples("herder rotate certificates meadow", "herder rotate encryption-keys meadow")
)
def command() -> None:
    """Rotate the certificates or encryption keys of a cluster."""


@command.command(epilog=CERTIFICATES_EXAMPLES)
@operation_options
@output_option
@click.option(
    "--service",
    "services",
    metavar="NAME",
    multiple=True,
    help="Service whose certificates are renewed, such as kubelet; repeatable. Default: all services.",
)
def certificates(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    output: str | None,
    services: tuple[str, ...],
) -> None:
    """Renew the certificates of CLUSTER on one machine after the other.

    Kubernetes restarts on each machine: first etcd, then the control plane, then workers. Certificate authorities stay
    the same.
    """
    fields = {"services": list(services)}
    run_operation(kubeconfig, namespace, name, CERTIFICATES, fields, wait=wait, timeout=timeout, output=output)


@command.command("encryption-keys", epilog=KEYS_EXAMPLES)
@operation_options
@output_option
@yes_option
def encryption_keys(
    name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, output: str | None, yes: bool
) -> None:
    """Rotate the keys that encrypt Secrets in the etcd of CLUSTER, and encrypt all Secrets again.

    Servers restart three times, one at a time. A rotation cannot be undone, so take a snapshot first. On a terminal,
    the command asks for confirmation.
    """

    async def check(client: Client) -> None:
        check_provisioned(name, await existing_cluster(client, namespace, name), "rotate its encryption keys")

    ask(kubeconfig, lambda client, _here: check(client))
    first = f"to be able to go back, first run: herder snapshot create {name}{namespace_flag(namespace)}"
    print_line(f"Warning: a rotation of encryption keys cannot be undone; {first}", err=True)
    question = (
        f"Rotate the encryption keys of cluster {name} in namespace {namespace}? Its servers restart three times."
    )
    confirm(question, yes)
    run_operation(kubeconfig, namespace, name, ENCRYPTION_KEYS, {}, wait=wait, timeout=timeout, output=output)
