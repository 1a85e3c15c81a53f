"""The management Cluster of a provisioning Cluster: its name, its spec and the kubeconfig Secret."""

from __future__ import annotations

import re

from herder.api import settings
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of, kubeconfig_secret
from herder.api.identity.tenancy.clusters import GENERATED_CLUSTER_NAME, is_cluster_name
from herder.api.management import clusters, names
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.writes import object_patch, owner_reference
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, Write, requesting
from herder.engine.runtime.view import View

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def management_name(view: View, cluster: Object) -> str:
    """The name of the management Cluster: as recorded, as requested, or generated.

    Users can write the status. A generated name in it counts only while its management Cluster exists: otherwise it may
    be that of a deleted cluster, whose kubeconfigs would lead to this one.
    """
    recorded = str((cluster.get("status") or {}).get("clusterName") or "")
    if recorded and (not re.search(GENERATED_CLUSTER_NAME, recorded) or view.get(MANAGEMENT_CLUSTER, recorded)):
        return recorded
    requested = annotations_of(cluster).get(names.MANAGEMENT_NAME)
    return str(requested or f"c-m-{view.unique(cluster['metadata']['uid'], 8)}")


def naming_problem(view: View, cluster: Object, name: str) -> str:
    """Why the cluster cannot have the management Cluster of this name; "" if it can."""
    if not _NAME.fullmatch(name):
        problem = f'"{name}" is not a valid name; use lower-case letters, digits and dashes'
        return f"annotation {names.MANAGEMENT_NAME}: {problem}"
    management = view.get(MANAGEMENT_CLUSTER, name)
    meta = cluster["metadata"]
    # Admission has checked the annotation, but does not see who writes the status.
    is_requested = name == annotations_of(cluster).get(names.MANAGEMENT_NAME)
    if management is None and not is_requested and not is_cluster_name(name):
        return f"status.clusterName: {name} cannot be the name of a management Cluster; correct the status"
    if management is not None and not clusters.are_paired(management, meta["namespace"], meta["name"]):
        field = f"annotation {names.MANAGEMENT_NAME}" if is_requested else "status.clusterName"
        correction = "choose another name" if is_requested else "correct the status"
        return f"{field}: management Cluster {name} belongs to another cluster; {correction}"
    return ""


def management_of(view: View, cluster: Object) -> Object | None:
    name = (cluster.get("status") or {}).get("clusterName")
    management = view.get(MANAGEMENT_CLUSTER, name) if name else None
    return management if management is not None and clusters.is_pair(management, cluster) else None


def create(view: View, cluster: Object, name: str) -> Decision:
    created = clusters.management_of(cluster, name)
    return Decision(writes=(Create(MANAGEMENT_CLUSTER, created, f"{view.key} is a managed cluster"),))


def follow_spec(cluster: Object, management: Object) -> tuple[Write, ...]:
    """Update the management Cluster of a provisioned cluster from its spec; users edit that of an imported one."""
    if not clusters.is_provisioned_here(cluster):
        return ()
    wanted = clusters.updated_management(management, cluster)
    return object_patch(MANAGEMENT_CLUSTER, management, wanted, "its provisioning Cluster has changed")


# --- kubeconfig -------------------------------------------------------------------------------------------------------


def kubeconfig(view: View, cluster: Object, management: Object) -> tuple[str, Decision]:
    """The name of the kubeconfig Secret, once it exists. An effect creates it, so that no decision sees its token."""
    server, _certificates = settings.internal_address(view.setting)
    if not server or not _has_connected(cluster, management):
        return "", DONE
    secret = view.get(SECRET_METADATA, kubeconfig_secret(view.name))
    effect = _make_kubeconfig(view, cluster, management, secret)
    result = view.result(effect.key)
    if result is not None and result.done and secret is not None:
        return kubeconfig_secret(view.name), DONE
    request = requesting(effect, result, "waiting for the kubeconfig Secret")
    return kubeconfig_secret(view.name) if secret else "", request


def _make_kubeconfig(view: View, cluster: Object, management: Object, secret: Object | None) -> Effect:
    """The effect that creates the Secret, keyed by everything that it depends on, so that it runs once per change."""
    meta, (server, certificates) = cluster["metadata"], settings.internal_address(view.setting)
    existing = secret["metadata"]["uid"] if secret else ""
    pin = ca_checksum(certificates)
    key = (names.MAKE_KUBECONFIG, meta["uid"], management["metadata"]["uid"], server, pin, existing)
    arguments = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "management": management["metadata"]["name"],
        "provisioned": clusters.is_provisioned_here(cluster),
        "owner": owner_reference(PROVISIONING_CLUSTER, cluster, controller=True),
        "managementOwner": owner_reference(MANAGEMENT_CLUSTER, management, controller=True),
    }
    reason = "kubeconfig for clients of the cluster"
    return Effect(names.MAKE_KUBECONFIG, key, arguments, reason, repeat=secret is None)


def _has_connected(cluster: Object, management: Object) -> bool:
    return bool((cluster.get("status") or {}).get("clientSecretName")) or clusters.has_connected(management)
