"""A management Cluster has a namespace and a registration token, and tells whether its agent is connected."""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.conditions import condition
from herder.api.capi.kinds import NAMESPACE, NODE
from herder.api.capi.names import cluster_key, is_deleting
from herder.api.capi.nodes import NODE_RECORD
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.jobs import ROLE
from herder.api.management import clusters, names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.writing import delete, object_patch, owner_reference, owners, ref, status_patch
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Create,
    Decision,
    Effect,
    Observe,
    Projection,
    Write,
    requesting,
    waiting,
)
from herder.engine.runtime.handlers import Watches, changed, itself
from herder.engine.runtime.view import Observed, View

PUSHED = "agentTokenExpiresAt"  # in the status
BY_OWNER = "owner-uid"


def reconcile(view: View) -> Decision:
    management = view.get(MANAGEMENT_CLUSTER, view.name)
    if management is None:
        return DONE
    if is_deleting(management):
        return _remove(view, management)
    if names.REMOVE_MANAGEMENT not in (management["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(management, add=True))
    info, needs = _info(view, management)
    pushed, asks = _push_token(view, management)
    return (
        needs
        + _home(view, management)
        + _pair(view, management)
        + _report_status(view, management, info, pushed)
        + asks
    )


# --- its namespace and what is in it --------------------------------------------------------------------------------


def _home(view: View, management: Object) -> Decision:
    home = view.get(NAMESPACE, view.name)
    if home is None:
        return Decision(
            writes=(Create(NAMESPACE, _namespace(management), "where what belongs to the cluster is kept"),)
        )
    if not _is_home(home, management) or is_deleting(home) or not clusters.is_at_home(management):
        return DONE  # that it is at home is told first: by that the gateway knows whose tokens these are
    return Decision(writes=(*_token(view), *_readers(view)))


def _is_home(home: Object | None, management: Object) -> bool:
    """A namespace that was there before is not taken over: it would be deleted with the cluster."""
    owners = (home["metadata"].get("ownerReferences") or ()) if home else ()
    return any(reference.get("uid") == management["metadata"]["uid"] for reference in owners)


def _namespace(management: Object) -> Object:
    owners = [owner_reference(MANAGEMENT_CLUSTER, management, controller=True)]
    return _object(NAMESPACE, management["metadata"]["name"], ownerReferences=owners)


def _token(view: View) -> Iterable[Write]:
    if view.get(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, view.name) is None:
        token = _object(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, namespace=view.name)
        spec = {"spec": {"clusterName": view.name}}
        yield Create(REGISTRATION_TOKEN, {**token, **spec}, "agents of the cluster register with it")


def _readers(view: View) -> Iterable[Write]:
    tokens = view.select(REGISTRATION_TOKEN, namespace=view.name)
    secrets = sorted(names.token_secret(each["metadata"]["name"]) for each in tokens)
    if not secrets:
        return
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get"]}
    role = {**_object(ROLE, names.TOKEN_READER, namespace=view.name), "rules": [rule]}
    yield Apply(ROLE, role, "who may read the cluster's registration tokens")


def _object(kind: Kind, name: str, **meta: object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **meta}}


# --- its provisioning Cluster ---------------------------------------------------------------------------------------


def _pair(view: View, management: Object) -> Decision:
    """Clusters that were made as management Clusters are seen as provisioning Clusters too."""
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    if not names.is_legacy(view.name) or not workspace:
        return DONE
    if view.get(PROVISIONING_CLUSTER, view.name, workspace) is not None:
        return DONE
    made: list[Write] = []
    if view.get(NAMESPACE, workspace) is None:
        made.append(Create(NAMESPACE, _object(NAMESPACE, workspace), "the workspace of a managed cluster"))
    pair = clusters.provisioning_of(management)
    made.append(Create(PROVISIONING_CLUSTER, pair, "it goes with its management Cluster"))
    return Decision(writes=tuple(made))


# --- its agent's token ----------------------------------------------------------------------------------------------


def _push_token(view: View, management: Object) -> tuple[str, Decision]:
    """When the token ends that the agent has; "" while that is not known. An agent that only ever knew the first one
    could not come back after the next: while it is connected, it is brought each that follows."""
    pushed = str((management.get("status") or {}).get(PUSHED) or "")
    token = view.get(REGISTRATION_TOKEN, names.DEFAULT_TOKEN, view.name)
    ends = str(((token or {}).get("status") or {}).get("expiresAt") or "")
    pair = next(iter(_pairs(view, management)), None)
    if pair is None or not ends or ends == pushed or clusters.is_internal(management):
        return pushed, DONE
    if not (pair.get("status") or {}).get("clientSecretName") or not clusters.is_connected(management):
        return pushed, DONE
    key = (names.PUSH_TOKEN, management["metadata"]["uid"], ends)
    result = view.result(key)
    if result is not None and result.done:
        return ends, DONE
    arguments = {"cluster": cluster_key(*_place(pair)), "management": view.name}
    effect = Effect(names.PUSH_TOKEN, key, arguments, "the agent is to know the token that replaced its own")
    return pushed, requesting(effect, result, "waiting for the agent to be given its new token")


# --- what it tells --------------------------------------------------------------------------------------------------


def _node_facts(node: Object) -> Object:
    found = NODE_RECORD.project(node)
    seen = found["status"].get("nodeInfo") or {}
    return {
        "metadata": {"name": found["metadata"].get("name", "")},
        "version": seen.get("kubeletVersion", ""),
        "arch": seen.get("architecture", ""),
    }


NODES = Projection("managed-node", project=_node_facts)


def _info(view: View, management: Object) -> tuple[Object, Decision]:
    """What its Nodes tell; what was known stays while the cluster does not answer. It is reached through its agent's
    tunnel, by the connection that its roles are kept with; the manager's own by its kubeconfig."""
    known = (management.get("status") or {}).get("info") or {}
    pair = next(iter(_pairs(view, management)), None)
    if pair is None:
        return known, DONE
    namespace, name = _place(pair)
    known = {**known, "provisioningClusterRef": {"name": name, "namespace": namespace}, **_as_asked(pair)}
    if not (pair.get("status") or {}).get("clientSecretName") or not clusters.is_connected(management):
        return known, DONE
    way = cluster_key(namespace, name) if clusters.is_internal(management) else view.name
    wish = Observe(way, NODE, projection=NODES)
    seen = view.observed(wish)
    if isinstance(seen, Observed):
        known |= _of_nodes(seen.objects)
        if not clusters.is_provisioned_here(pair):  # of one that is built here, its control plane counts Machines
            known |= {"nodeCount": len(seen.objects)}
            known |= {"machineProvider": "local" if clusters.is_internal(management) else "imported"}
    return known, Decision(observe=(wish,))


def _as_asked(provisioning: Object) -> Object:
    """Of a cluster that is built here: what its machines are made by."""
    if not clusters.is_provisioned_here(provisioning):
        return {}
    pools = provisioning["spec"]["rkeConfig"].get("machinePools") or [{}]
    kind = (pools[0].get("machineConfigRef") or {}).get("kind") or "custom"
    return {"machineProvider": kind.removesuffix("Config")}


def _of_nodes(nodes: Iterable[Object]) -> Object:
    facts = list(nodes)
    versions = sorted({each["version"] for each in facts if each["version"]}, key=lambda text: (len(text), text))
    architectures = {each["arch"] for each in facts if each["arch"]}
    found: Object = {}
    if versions:
        found["kubernetesVersion"] = versions[0]
    if architectures:
        found["arch"] = architectures.pop() if len(architectures) == 1 else "mixed"
    return found


def _report_status(view: View, management: Object, info: Object, pushed: str) -> Decision:
    before = management.get("status") or {}
    home = view.get(NAMESPACE, view.name)
    conditions = clusters.management_conditions(management, view.now)
    taken = home is not None and not is_deleting(home) and not _is_home(home, management)
    problem = f"namespace {view.name} is there already and not this cluster's: the cluster needs another name"
    if taken:
        backing = condition(clusters.NAMESPACE_CREATED, "False", "Taken", problem)
    elif home is None or is_deleting(home):
        backing = condition(clusters.NAMESPACE_CREATED, "Unknown", "Creating")
    else:
        backing = condition(clusters.NAMESPACE_CREATED, "True", "Created")
    status = {
        **before,
        **({"info": info} if info else {}),
        **({PUSHED: pushed} if pushed else {}),
        **({"driver": "imported"} if clusters.is_internal(management) and not before.get("driver") else {}),
        "conditions": merged_with_updates(conditions, [backing], view.now),
    }
    writes = status_patch(MANAGEMENT_CLUSTER, management, status, "what is known of the cluster")
    ends = clusters.conflict_ends(management)
    again = Decision(wake_at=ends) if ends is not None and view.now < ends else DONE
    return Decision(writes=writes) + again + (waiting(problem, ref(MANAGEMENT_CLUSTER, management)) if taken else DONE)


# --- removal --------------------------------------------------------------------------------------------------------


def _remove(view: View, management: Object) -> Decision:
    """Its provisioning Clusters go first; the namespace goes with it, by its owner."""
    if names.REMOVE_MANAGEMENT not in (management["metadata"].get("finalizers") or ()):
        return DONE
    pairs = _pairs(view, management) or _unnamed_pair(view, management)
    if not pairs:
        rights = view.select(CLUSTER_ROLE_BINDING, index=(BY_OWNER, management["metadata"]["uid"]))
        ended = tuple(delete(CLUSTER_ROLE_BINDING, each, "its cluster is deleted") for each in rights)
        return Decision(writes=(*ended, *_finalizer(management, add=False)))
    reason = "its management Cluster is deleted"
    going = tuple(delete(PROVISIONING_CLUSTER, each, reason) for each in pairs if not is_deleting(each))
    meta = pairs[0]["metadata"]
    message = f"waiting for provisioning Cluster {meta['namespace']}/{meta['name']} to be gone"
    return Decision(writes=going) + waiting(message, ref(PROVISIONING_CLUSTER, pairs[0]))


def _pairs(view: View, management: Object) -> list[Object]:
    named = view.select(PROVISIONING_CLUSTER, index=(clusters.BY_MANAGEMENT, view.name))
    return [each for each in named if clusters.belongs(management, *_place(each))]


def _unnamed_pair(view: View, management: Object) -> list[Object]:
    """The provisioning Cluster that was made for this one, before its status names it."""
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    pair = view.get(PROVISIONING_CLUSTER, view.name, workspace) if workspace else None
    return [pair] if pair is not None and clusters.belongs(management, *_place(pair)) else []


def _place(provisioning: Object) -> tuple[str, str]:
    return provisioning["metadata"]["namespace"], provisioning["metadata"]["name"]


def _finalizer(management: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in management["metadata"].get("finalizers") or () if each != names.REMOVE_MANAGEMENT]
    wanted = [*others, names.REMOVE_MANAGEMENT] if add else others
    changed_ = {**management, "metadata": {**management["metadata"], "finalizers": wanted}}
    reason = "what belongs to it is to go with it" if add else "nothing of it is left"
    return object_patch(MANAGEMENT_CLUSTER, management, changed_, reason)


# --- what sets it off -----------------------------------------------------------------------------------------------


def _its_management(provisioning: Object) -> Iterable[Key]:
    """The deleted one of a legacy cluster is made again, whatever it said."""
    for name in {*clusters.management_name(provisioning), provisioning["metadata"]["name"]}:
        yield Key("", name)


def _of_namespace(obj: Object) -> Iterable[Key]:
    return (Key("", obj["metadata"]["namespace"]),)


CONTROLLER = Controller(
    name="management-cluster",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(NAMESPACE, itself, changed("metadata.deletionTimestamp", "metadata.ownerReferences")),
        Watches(CLUSTER_ROLE_BINDING),
        Watches(REGISTRATION_TOKEN, _of_namespace, changed("status.expiresAt")),
        Watches(
            PROVISIONING_CLUSTER,
            _its_management,
            changed("status.clusterName", "status.clientSecretName", "metadata.deletionTimestamp"),
        ),
    ),
    indexes={
        PROVISIONING_CLUSTER: {clusters.BY_MANAGEMENT: clusters.management_name},
        CLUSTER_ROLE_BINDING: {BY_OWNER: owners},
    },
)
