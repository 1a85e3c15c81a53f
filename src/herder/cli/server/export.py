"""`herder export`: print all user objects in an order and form that another cluster can apply."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import click

from herder.api.capi.inventory import is_ours
from herder.api.references.approvals import APPROVED
from herder.app.host.paths import kubeconfig_option
from herder.cli.client import connect
from herder.cli.examples import examples
from herder.engine.client import kubeconfig as kubeconfigs
from herder.engine.client.client import Client
from herder.engine.client.discovery import Found, all_resources
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object

# Objects that a cluster creates by itself, or that are meaningless elsewhere.
LEFT_OUT = frozenset({
    "apiservices", "bindings", "componentstatuses", "controllerrevisions", "endpoints", "endpointslices", "events",
    "leases", "nodes", "pods", "csinodes", "volumeattachments", "flowschemas", "prioritylevelconfigurations",
    "replicasets", "ipaddresses", "servicecidrs",
})  # fmt: skip
FIRST = ("namespaces", "customresourcedefinitions", "priorityclasses", "serviceaccounts", "secrets", "configmaps")
BOOTSTRAP_LABEL = "kubernetes.io/bootstrapping"
SYSTEM_NAMESPACES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink",
                 "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip


@click.command(
    epilog=examples(
        "herder export | kubectl --context other apply --server-side -f -",
        "herder export -n fleet-default > fleet-default.yaml",
    )
)
@click.option("-n", "--namespace", metavar="NAME", default="", help="Export only this namespace. Default: all objects.")
@kubeconfig_option
def command(namespace: str, kubeconfig: str | None) -> None:
    """Print objects as YAML that `kubectl apply --server-side -f -` accepts on another cluster.

    WARNING: the output contains Secrets in plain text. Send it only to the other cluster.

    The output omits status, nodes, pods and other objects that a cluster creates by itself. It also omits owner
    references, because their UIDs are not valid in another cluster.
    """
    try:
        asyncio.run(_export(connect(kubeconfig), namespace))
    except (StatusError, kubeconfigs.KubeconfigError) as error:
        raise click.ClickException(str(error)) from error


async def _export(connection: kubeconfigs.RestConfig, namespace: str) -> None:
    import yaml

    from herder.engine.client.http import HttpTransport

    client = Client(HttpTransport(connection))
    try:
        for found in _in_order([found for found, _ in await all_resources(client)]):
            if namespace and not found.namespaced:
                continue
            page = await client.list_all(found.resource, namespace=namespace)
            for obj in page.items:
                if _belongs_to_user(obj, found):
                    yaml.safe_dump(portable(obj), sys.stdout, sort_keys=False, explicit_start=True)
    finally:
        await client.close()


def _in_order(resources: list[Found]) -> Iterator[Found]:
    """Namespaces and CRDs first; each resource once."""
    rank = {name: position for position, name in enumerate(FIRST)}
    wanted = [found for found in resources if {"list", "create"} <= set(found.verbs)]
    kept = [found for found in wanted if found.resource.resource not in LEFT_OUT]
    yield from sorted(kept, key=lambda found: rank.get(found.resource.resource, len(rank)))


def _belongs_to_user(obj: Object, found: Found) -> bool:
    meta = obj["metadata"]
    if BOOTSTRAP_LABEL in (meta.get("labels") or {}) or meta.get("deletionTimestamp") or is_ours(obj):
        return False
    name, plural = meta["name"], found.resource.resource
    made_by_server = (
        (plural == "namespaces" and name in SYSTEM_NAMESPACES)
        or (plural == "configmaps" and name == "kube-root-ca.crt")
        or (plural == "serviceaccounts" and name == "default")
        or (plural == "services" and name == "kubernetes" and meta.get("namespace") == "default")
        or (plural == "priorityclasses" and name.startswith("system-"))
        or (plural == "secrets" and obj.get("type") == "kubernetes.io/service-account-token")
        or (plural in {"roles", "rolebindings", "clusterroles", "clusterrolebindings"} and name.startswith("system:"))
    )
    return not made_by_server


def portable(obj: Object) -> Object:
    """The object without fields that the server set."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in (*SERVER_FIELDS, "ownerReferences")}
    if APPROVED in (meta.get("annotations") or {}):  # It contains UIDs of this server.
        meta["annotations"] = {name: value for name, value in meta["annotations"].items() if name != APPROVED}
    rest = {key: value for key, value in obj.items() if key not in {"status", "metadata", "apiVersion", "kind"}}
    made = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta, **rest}
    if obj["kind"] == "Service":
        made["spec"] = {k: v for k, v in made["spec"].items() if k not in {"clusterIP", "clusterIPs", "ipFamilies"}}
    if obj["kind"] == "Namespace":
        made.pop("spec", None)
    return made
