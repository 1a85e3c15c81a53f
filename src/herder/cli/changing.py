"""`herder scale cluster` and `herder upgrade cluster`: edits of a cluster that stays the same cluster."""

from __future__ import annotations

from collections.abc import Iterable

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster_options import change, cluster_options, edit
from herder.cli.nouns import Nouns
from herder.engine.meta.kinds import Object


@click.group(cls=Nouns)
def scale() -> None:
    """Have more or fewer of something."""


@click.group(cls=Nouns)
def upgrade() -> None:
    """Bring something to another version."""


@scale.command("cluster")
@cluster_options
@click.argument("pools", nargs=-1, required=True, metavar="POOL=COUNT...")
@click.option("--give-up-etcd", is_flag=True, help="Let the last machine with etcd go, and the cluster's data with it.")
def scale_cluster(
    name: str,
    namespace: str,
    wait: bool,
    timeout: float,
    kubeconfig: str | None,
    pools: tuple[str, ...],
    give_up_etcd: bool,
) -> None:
    """Have COUNT machines in each POOL of the cluster NAME."""
    counts = dict(_count(each) for each in pools)

    def mutate(cluster: Object) -> None:
        known = {pool["name"]: pool for pool in (cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()}
        had_etcd = _has_etcd(known.values())
        for pool, count in counts.items():
            if pool not in known:
                there = ", ".join(known) or "none"
                raise click.ClickException(f"cluster {name} has no pool {pool}; it has {there}")
            known[pool]["quantity"] = count
        if had_etcd and not _has_etcd(known.values()) and not give_up_etcd:
            raise click.ClickException(
                f"no machine with etcd would be left in cluster {name}, and all that is stored in it would be lost: "
                f"herder delete cluster {name} removes a cluster, --give-up-etcd does this nonetheless"
            )

    change(
        kubeconfig, namespace, name, lambda client: edit(client, namespace, name, mutate), wait=wait, timeout=timeout
    )


@upgrade.command("cluster")
@cluster_options
@click.argument("version")
def upgrade_cluster(
    name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, version: str
) -> None:
    """Bring the cluster NAME to VERSION, tier by tier, on the machines that it has."""

    def mutate(cluster: Object) -> None:
        if not cluster["spec"].get("rkeConfig"):
            raise click.ClickException(f"{PROVISIONING_CLUSTER.kind} {name} was not made here: upgrade it where it was")
        cluster["spec"]["kubernetesVersion"] = version

    change(
        kubeconfig, namespace, name, lambda client: edit(client, namespace, name, mutate), wait=wait, timeout=timeout
    )


def _has_etcd(pools: Iterable[Object]) -> bool:
    return any(pool.get("etcdRole") and pool.get("quantity", 1) for pool in pools)


def _count(text: str) -> tuple[str, int]:
    pool, equals, count = text.partition("=")
    if not pool or not equals or not count.isdecimal():
        raise click.BadParameter(f"{text!r} must be POOL=COUNT, such as workers=3")
    return pool, int(count)
