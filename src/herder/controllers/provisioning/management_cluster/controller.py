"""Reconcile management Clusters: namespace, registration token, provisioning Cluster and status.

Of all controllers, this one alone writes the status. The gateway records in it what an agent reports (`driver`,
`apiEndpoint`, `caCert`, `serviceAccountTokenSecret`), and in annotations whether the agent is connected. What
provisioning knows is read from the RKEControlPlane and its Machines (`status.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.kinds import MACHINE, NAMESPACE
from herder.api.capi.names import cluster_key, is_deleting
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.jobs import ROLE
from herder.api.management import clusters, names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.rke.kinds import CONTROL_PLANE
from herder.api.rke.machines.removal import BY_CLUSTER, cluster_of
from herder.api.writes import delete, object_patch, owner_reference, owners, ref
from herder.controllers.provisioning.management_cluster.status import (
    is_cluster_namespace,
    observe_nodes,
    report_removal,
    report_status,
)
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Create,
    Decision,
    Effect,
    Write,
    requesting,
    waiting,
)
from herder.engine.runtime.handlers import Indexed, Watches, changed, itself
from herder.engine.runtime.view import View

TOKEN_EXPIRES_AT = "agentTokenExpiresAt"  # in the status
BY_OWNER, BY_PROVISIONED = "owner-uid", "provisioned-cluster"


def reconcile(view: View) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.name)
    if management is None:
        return DONE
    if is_deleting(management):
        return _remove(view, management)
    if names.REMOVE_MANAGEMENT not in (management["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(management, add=True))
    provisioning = next(iter(_paired_clusters(view, management)), None)
    nodes, observation = observe_nodes(view, management, provisioning)
    delivered, delivery = _push_token(view, management, provisioning)
    return (
        observation
        + _namespace_objects(view, management)
        + _create_provisioning(view, management)
        + report_status(view, management, provisioning, nodes, {TOKEN_EXPIRES_AT: delivered} if delivered else {})
        + delivery
    )


# --- namespace of the cluster -----------------------------------------------------------------------------------------


def _namespace_objects(view: View, management: Object) -> Decision:
    namespace = view.get(NAMESPACE, view.name)
    if namespace is None:
        return Decision(writes=(Create(NAMESPACE, _namespace(management), "namespace of the cluster"),))
    if (
        not is_cluster_namespace(namespace, management)
        or is_deleting(namespace)
        or not clusters.owns_namespace(management)
    ):
        return DONE  # the gateway trusts tokens only after the status confirms the namespace
    return Decision(writes=(*_token(view), *_readers(view)))


def _namespace(management: Object) -> Object:
    owners = [owner_reference(MANAGEMENT_CLUSTER, management, controller=True)]
    return _object(NAMESPACE, management["metadata"]["name"], ownerReferences=owners)


def _token(view: View) -> Iterable[Write]:
    if view.get(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, view.name) is None:
        token = _object(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, namespace=view.name)
        spec = {"spec": {"clusterName": view.name}}
        yield Create(REGISTRATION_TOKEN, {**token, **spec}, "registration token for the cluster's agents")


def _readers(view: View) -> Iterable[Write]:
    tokens = view.select(REGISTRATION_TOKEN, namespace=view.name)
    secrets = sorted(names.token_secret(each["metadata"]["name"]) for each in tokens)
    if not secrets:
        return
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"]}
    role = {**_object(ROLE, names.TOKEN_READER, namespace=view.name), "rules": [rule]}
    yield Apply(ROLE, role, "read access to the cluster's registration tokens")


def _object(kind: Kind, name: str, **meta: object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **meta}}


# --- provisioning Cluster ---------------------------------------------------------------------------------------------


def _create_provisioning(view: View, management: Object) -> Decision:
    """Create the provisioning Cluster of a legacy cluster, which was created as a management Cluster.

    Users can choose such a name for a provisioning Cluster, too. A second one would outlast it, without an owner.
    """
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    is_created_for_another = clusters.source_provisioning_cluster(management) is not None
    if not names.is_legacy(view.name) or not workspace or is_created_for_another:
        return DONE
    if view.get(PROVISIONING_CLUSTER, view.name, workspace) is not None:
        return DONE
    creates: list[Write] = []
    if view.get(NAMESPACE, workspace) is None:
        creates.append(Create(NAMESPACE, _object(NAMESPACE, workspace), "the workspace of a managed cluster"))
    provisioning = clusters.provisioning_of(management)
    creates.append(Create(PROVISIONING_CLUSTER, provisioning, "every management Cluster has a provisioning Cluster"))
    return Decision(writes=tuple(creates))


# --- token of the agent -----------------------------------------------------------------------------------------------


def _push_token(view: View, management: Object, provisioning: Object | None) -> tuple[str, Decision]:
    """Deliver a rotated token to the connected agent; return the expiry of the token that it has, or "" if unknown.

    An agent that knows only an old token could not reconnect after the next rotation.
    """
    delivered = str((management.get("status") or {}).get(TOKEN_EXPIRES_AT) or "")
    token = view.get(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, view.name)
    expires = str(((token or {}).get("status") or {}).get("expiresAt") or "")
    if provisioning is None or not expires or expires == delivered or clusters.is_internal(management):
        return delivered, DONE
    if not (provisioning.get("status") or {}).get("clientSecretName") or not clusters.is_connected(management):
        return delivered, DONE
    key = (names.PUSH_TOKEN, management["metadata"]["uid"], expires)
    result = view.result(key)
    if result is not None and result.done:
        return expires, DONE
    arguments = {"cluster": cluster_key(*_key_of(provisioning)), "management": view.name}
    effect = Effect(names.PUSH_TOKEN, key, arguments, "deliver the rotated token to the agent")
    return delivered, requesting(effect, result, "waiting for the delivery of the rotated token")


# --- deletion ---------------------------------------------------------------------------------------------------------


def _remove(view: View, management: Object) -> Decision:
    """Delete the provisioning Clusters first. The garbage collector deletes the namespace, which this one owns."""
    if names.REMOVE_MANAGEMENT not in (management["metadata"].get("finalizers") or ()):
        return DONE
    paired = _paired_clusters(view, management) or _unrecorded_cluster(view, management)
    if not paired:
        bindings = view.select(CLUSTER_ROLE_BINDING, index=(BY_OWNER, management["metadata"]["uid"]))
        revoked = tuple(delete(CLUSTER_ROLE_BINDING, each, "its cluster is deleted") for each in bindings)
        return Decision(writes=(*revoked, *_finalizer(management, add=False)))
    reason = "its management Cluster is deleted"
    deletes = tuple(delete(PROVISIONING_CLUSTER, each, reason) for each in paired if not is_deleting(each))
    meta = paired[0]["metadata"]
    message = f"waiting for provisioning Cluster {meta['namespace']}/{meta['name']} to be gone"
    reported = report_removal(view, management, paired[0])
    return Decision(writes=(*deletes, *reported)) + waiting(message, ref(PROVISIONING_CLUSTER, paired[0]))


def _paired_clusters(view: View, management: Object) -> list[Object]:
    named = view.select(PROVISIONING_CLUSTER, index=(clusters.BY_MANAGEMENT, view.name))
    return [each for each in named if clusters.are_paired(management, *_key_of(each))]


def _unrecorded_cluster(view: View, management: Object) -> list[Object]:
    """The provisioning Cluster that was created for this one and whose status does not name it yet."""
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    provisioning = view.get(PROVISIONING_CLUSTER, view.name, workspace) if workspace else None
    return (
        [provisioning] if provisioning is not None and clusters.are_paired(management, *_key_of(provisioning)) else []
    )


def _key_of(provisioning: Object) -> tuple[str, str]:
    return provisioning["metadata"]["namespace"], provisioning["metadata"]["name"]


def _finalizer(management: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in management["metadata"].get("finalizers") or () if each != names.REMOVE_MANAGEMENT]
    wanted = [*others, names.REMOVE_MANAGEMENT] if add else others
    changed_ = {**management, "metadata": {**management["metadata"], "finalizers": wanted}}
    reason = "dependent objects must be deleted first" if add else "all dependent objects are deleted"
    return object_patch(MANAGEMENT_CLUSTER, management, changed_, reason)


# --- watches ----------------------------------------------------------------------------------------------------------


def _its_management(provisioning: Object) -> Iterable[Key]:
    """Also by name: the deleted provisioning Cluster of a legacy cluster is created again."""
    for name in {*clusters.management_name(provisioning), provisioning["metadata"]["name"]}:
        yield Key("", name)


def _of_namespace(obj: Object) -> Iterable[Key]:
    return (Key("", obj["metadata"]["namespace"]),)


def _provisioned_cluster(management: Object) -> Iterable[str]:
    """Indexer: the provisioning Cluster, and so the RKEControlPlane and the Machines, that it was created for."""
    found = clusters.source_provisioning_cluster(management)
    return (found,) if found else ()


def _own_key(plane: Object) -> Iterable[str]:
    return (f"{plane['metadata']['namespace']}/{plane['metadata']['name']}",)


def _is_created_or_deleted(change: Change) -> bool:
    return change.old is None or change.new is None


_named = changed("status.clusterName", "status.clientSecretName", "metadata.deletionTimestamp")
_reported = changed("status.conditions")


def _is_relevant(change: Change) -> bool:
    """Its conditions matter while it is being deleted: they say what the deletion waits for."""
    return _named(change) or (change.new is not None and is_deleting(change.new) and _reported(change))


CONTROLLER = Controller(
    name="management-cluster",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(NAMESPACE, itself, changed("metadata.deletionTimestamp", "metadata.ownerReferences")),
        Watches(CLUSTER_ROLE_BINDING),
        Watches(REGISTRATION_TOKEN, _of_namespace, changed("status.expiresAt")),
        Watches(PROVISIONING_CLUSTER, _its_management, _is_relevant),
        Watches(CONTROL_PLANE, Indexed(BY_PROVISIONED, _own_key), changed("status.conditions")),
        Watches(MACHINE, Indexed(BY_PROVISIONED, cluster_of), _is_created_or_deleted, optional=True),
    ),
    indexes={
        MANAGEMENT_CLUSTER: {BY_PROVISIONED: _provisioned_cluster},
        MACHINE: {BY_CLUSTER: cluster_of},
        PROVISIONING_CLUSTER: {clusters.BY_MANAGEMENT: clusters.management_name},
        CLUSTER_ROLE_BINDING: {BY_OWNER: owners},
    },
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
