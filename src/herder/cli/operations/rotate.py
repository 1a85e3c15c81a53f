"""`herder rotate`: rotate the certificates or encryption keys of a cluster."""

from __future__ import annotations

import click

from herder.api.rke.operations import CERTIFICATES, ENCRYPTION_KEYS
from herder.cli.cluster.options import operation_options
from herder.cli.examples import examples
from herder.cli.operations.progress import run_operation
from herder.cli.resources import ResourceGroup

CERTIFICATES_EXAMPLES = examples(
    "herder rotate certificates meadow",
    "herder rotate certificates meadow --service kubelet --service api-server",
)
KEYS_EXAMPLES = examples("herder rotate encryption-keys meadow", "herder rotate encryption-keys meadow --no-wait")


@click.group(
    cls=ResourceGroup, epilog=examples("herder rotate certificates meadow", "herder rotate encryption-keys meadow")
)
def command() -> None:
    """Rotate the certificates or encryption keys of a cluster."""


@command.command(epilog=CERTIFICATES_EXAMPLES)
@operation_options
@click.option(
    "--service",
    "services",
    metavar="NAME",
    multiple=True,
    help="Service whose certificates are renewed, such as kubelet; repeatable. Default: all services.",
)
def certificates(
    name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, services: tuple[str, ...]
) -> None:
    """Renew the certificates of CLUSTER on one machine after the other.

    Kubernetes restarts on each machine: first etcd, then the control plane, then workers. Certificate authorities stay
    the same.
    """
    fields = {"services": list(services)}
    run_operation(kubeconfig, namespace, name, CERTIFICATES, fields, wait=wait, timeout=timeout)


@command.command("encryption-keys", epilog=KEYS_EXAMPLES)
@operation_options
def encryption_keys(name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None) -> None:
    """Rotate the keys that encrypt Secrets in the etcd of CLUSTER, and encrypt all Secrets again.

    Servers restart three times, one at a time.
    """
    run_operation(kubeconfig, namespace, name, ENCRYPTION_KEYS, {}, wait=wait, timeout=timeout)
