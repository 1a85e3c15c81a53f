"""`herder scale cluster` and `herder upgrade cluster`: edits of a cluster that stays the same cluster."""

from __future__ import annotations

import click

from herder.api.management.kinds import PROVISIONING_CLUSTER
from herder.cli.cluster_options import change, cluster_options, edit
from herder.engine.meta.kinds import Object


@click.group()
def scale() -> None:
    """Have more or fewer of something."""


@click.group()
def upgrade() -> None:
    """Bring something to another version."""


@scale.command("cluster")
@cluster_options
@click.argument("pools", nargs=-1, required=True, metavar="POOL=COUNT...")
def scale_cluster(
    name: str, namespace: str, wait: bool, timeout: float, kubeconfig: str | None, pools: tuple[str, ...]
) -> None:
    """Have COUNT machines in each POOL of the cluster NAME."""
    counts = dict(_count(each) for each in pools)

    def mutate(cluster: Object) -> None:
        known = {pool["name"]: pool for pool in (cluster["spec"].get("rkeConfig") or {}).get("machinePools") or ()}
        for pool, count in counts.items():
            if pool not in known:
                there = ", ".join(known) or "none"
                raise click.ClickException(f"cluster {name} has no pool {pool}; it has {there}")
            known[pool]["quantity"] = count

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


def _count(text: str) -> tuple[str, int]:
    pool, equals, count = text.partition("=")
    if not pool or not equals or not count.isdecimal():
        raise click.BadParameter(f"{text!r} must be POOL=COUNT, such as workers=3")
    return pool, int(count)
