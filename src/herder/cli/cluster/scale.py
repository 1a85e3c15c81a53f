"""`herder scale cluster` and `herder upgrade cluster`: in-place edits of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from herder.cli.cluster.options import change, check_provisioned, cluster_options, edit, output_option
from herder.cli.examples import examples
from herder.cli.resources import ResourceGroup
from herder.engine.meta.kinds import Object

SCALE_EXAMPLES = examples(
    "herder scale cluster meadow workers=5",
    "herder scale cluster meadow servers=3 workers=10 --no-wait",
)
UPGRADE_EXAMPLES = examples("herder upgrade cluster meadow v1.36.4+herder1")


@click.group(cls=ResourceGroup, epilog=SCALE_EXAMPLES)
def scale() -> None:
    """Scale the machine pools of a cluster."""


@click.group(cls=ResourceGroup, epilog=UPGRADE_EXAMPLES)
def upgrade() -> None:
    """Upgrade Kubernetes on the existing machines of a cluster."""


@scale.command("cluster", epilog=SCALE_EXAMPLES)
@cluster_options
@click.argument("pools", nargs=-1, required=True, metavar="POOL=COUNT...")
@output_option
@click.option(
    "--give-up-etcd", is_flag=True, help="Allow deleting the last etcd machine, which deletes all data in the cluster."
)
def scale_cluster(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    pools: tuple[str, ...],
    output: str | None,
    give_up_etcd: bool,
) -> None:
    """Scale each machine POOL of the cluster NAME to COUNT machines."""
    counts = dict(_count(each) for each in pools)

    def mutate(cluster: Object) -> None:
        check_provisioned(name, cluster, "scale it")
        known = {pool["name"]: pool for pool in (cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()}
        had_etcd = _has_etcd(known.values())
        for pool, count in counts.items():
            if pool not in known:
                there = ", ".join(known) or "none"
                raise click.ClickException(f"cluster {name} has no machine pool {pool}; its pools are: {there}")
            known[pool]["quantity"] = count
        if had_etcd and not _has_etcd(known.values()) and not give_up_etcd:
            raise click.ClickException(
                f"cluster {name}: this would delete the last etcd machine and all data in the cluster; "
                f"pass --give-up-etcd to do so, or delete the cluster with: herder delete cluster {name}"
            )

    _edit_and_wait(kubeconfig, namespace, name, mutate, wait=wait, timeout=timeout, output=output)


@upgrade.command("cluster", epilog=UPGRADE_EXAMPLES)
@cluster_options
@click.argument("version")
@output_option
def upgrade_cluster(
    name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, version: str, output: str | None
) -> None:
    """Upgrade the cluster NAME to the Kubernetes VERSION without replacing its machines.

    Machines are upgraded tier by tier: first etcd, then the control plane, then workers.
    """

    def mutate(cluster: Object) -> None:
        check_provisioned(name, cluster, "upgrade it")
        cluster["spec"]["kubernetesVersion"] = version

    _edit_and_wait(kubeconfig, namespace, name, mutate, wait=wait, timeout=timeout, output=output)


def _edit_and_wait(
    kubeconfig: str | None,
    namespace: str,
    name: str,
    mutate: Callable[[Object], None],
    *,
    wait: bool,
    timeout: float,
    output: str | None,
) -> None:
    change(
        kubeconfig,
        namespace,
        name,
        lambda client: edit(client, namespace, name, mutate),
        wait=wait,
        timeout=timeout,
        output=output,
    )


def _has_etcd(pools: Iterable[Object]) -> bool:
    return any(pool.get("etcdRole") and pool.get("quantity", 1) for pool in pools)


def _count(text: str) -> tuple[str, int]:
    pool, equals, count = text.partition("=")
    if not pool or not equals or not count.isdecimal():
        raise click.BadParameter(
            f"{text!r} is not POOL=COUNT, such as workers=3; COUNT is a whole number, at least 0",
            param_hint="POOL=COUNT",
        )
    return pool, int(count)
