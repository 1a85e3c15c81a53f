"""`herder rotate`: rotate the certificates or encryption keys of a cluster."""

from __future__ import annotations

import click

from herder.api.rke.operations import AUTHORITIES, CERTIFICATES, ENCRYPTION_KEYS
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
    "herder rotate certificates meadow --ca",
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
@click.option("--ca", "authorities", is_flag=True, help="Rotate the certificate authorities too. K3s and RKE2 only.")
@yes_option
def certificates(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    output: str | None,
    services: tuple[str, ...],
    authorities: bool,
    yes: bool,
) -> None:
    """Renew the certificates of CLUSTER on one machine after the other.

    Kubernetes restarts on each machine: first etcd, then the control plane, then workers. Certificate authorities stay
    the same, unless you pass --ca. Then every etcd machine saves a snapshot first, and on a terminal, the command asks
    for confirmation.
    """
    if authorities and services:
        raise click.UsageError("--service cannot be used with --ca, which renews the certificates of all services")
    if authorities:
        _check(kubeconfig, namespace, name, "rotate its certificate authorities")
        print_line(
            "Warning: Kubernetes restarts on every machine. The old certificate authorities stay trusted until they "
            "expire; restart Pods that use the API server, and download kubeconfigs of the servers again, before that",
            err=True,
        )
        confirm(f"Rotate the certificate authorities of cluster {name} in namespace {namespace}?", yes)
    kind = AUTHORITIES if authorities else CERTIFICATES
    fields = {} if authorities else {"services": list(services)}
    run_operation(kubeconfig, namespace, name, kind, fields, wait=wait, timeout=timeout, output=output)


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
    _check(kubeconfig, namespace, name, "rotate its encryption keys")
    first = f"to be able to go back, first run: herder snapshot create {name}{namespace_flag(namespace)}"
    print_line(f"Warning: a rotation of encryption keys cannot be undone; {first}", err=True)
    question = (
        f"Rotate the encryption keys of cluster {name} in namespace {namespace}? Its servers restart three times."
    )
    confirm(question, yes)
    run_operation(kubeconfig, namespace, name, ENCRYPTION_KEYS, {}, wait=wait, timeout=timeout, output=output)


def _check(kubeconfig: str | None, namespace: str, name: str, purpose: str) -> None:
    """Fail before the question unless Herder provisions this cluster."""

    async def check(client: Client) -> None:
        check_provisioned(name, await existing_cluster(client, namespace, name), purpose)

    ask(kubeconfig, lambda client, _here: check(client))
