"""Managed clusters as objects: which provisioning Cluster goes with which management Cluster, and what both tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from herder.api.capi.conditions import Condition, condition, is_true
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.moments import moment
from herder.api.rke.names import ADMINISTRATED
from herder.engine.meta.kinds import Object

CONNECTED, READY, PROVISIONED, CREATED, WAITING = "Connected", "Ready", "Provisioned", "Created", "Waiting"
NAMESPACE_CREATED = "BackingNamespaceCreated"
AGENT_CONFLICT = "AgentConflict"
CONFLICT_REPORTED = timedelta(days=1)
RECONCILING, STALLED = "Reconciling", "Stalled"
DISCONNECTED = "Disconnected"
NOT_CONNECTED = "Cluster agent is not connected"
BEING_BUILT = "waiting for the cluster's agent: the cluster is being built"
NEVER_CONNECTED = "waiting for the cluster's agent: run the command of its ClusterRegistrationToken in the cluster"

IMPORTED_DRIVERS = {"imported", "k3s", "k3os", "rke2", "rancherd"}
"""Of clusters whose agent tells how their API is reached."""


def is_internal(management: Object) -> bool:
    """The cluster that the manager itself runs on: there is no tunnel to it, and rights in it are rights here.

    The name decides, which no other object can have. `spec.internal` alone is no proof: owners of a cluster edit its
    spec. Admission lets only the manager create a cluster of this name.
    """
    is_local = management["metadata"]["name"] == names.LOCAL
    return is_local and bool((management.get("spec") or {}).get("internal"))


def is_at_home(management: Object) -> bool:
    """Whether the namespace of its name is its own. What lies there before that belongs to another of the same name."""
    return is_true(management, NAMESPACE_CREATED)


def is_anothers(home: Object | None, management: Object) -> bool:
    """Whether the namespace of the cluster's name is not its own: none of what is in it is about this cluster.

    An earlier cluster of the name leaves it behind for a moment, or for good without an owner, where it was deleted
    with propagationPolicy=Orphan. No user creates a cluster with the name of the manager's own.
    """
    if home is None or is_internal(management):
        return False
    owners = home["metadata"].get("ownerReferences") or ()
    return all(each.get("uid") != management["metadata"]["uid"] for each in owners)


def is_provisioned_here(provisioning: Object) -> bool:
    """Whether the cluster is built from here, rather than imported."""
    return (provisioning.get("spec") or {}).get("rkeConfig") is not None


def is_administrated(management: Object) -> bool:
    """The same, as the management Cluster tells it."""
    return annotations_of(management).get(ADMINISTRATED) == "true"


def local_cluster() -> Object:
    """The management Cluster of the manager's own cluster; its provisioning Cluster follows from it."""
    return {
        "apiVersion": MANAGEMENT_CLUSTER.api_version,
        "kind": MANAGEMENT_CLUSTER.kind,
        "metadata": {"name": names.LOCAL},
        "spec": {"displayName": names.LOCAL, "internal": True, "fleetWorkspaceName": names.LOCAL_WORKSPACE},
    }


# --- the pair -------------------------------------------------------------------------------------------------------

BY_MANAGEMENT = "management-cluster"  # the index of provisioning Clusters by `management_name`


def management_name(provisioning: Object) -> Iterable[str]:
    """Indexer: the management Cluster that a provisioning Cluster says is its own."""
    name = (provisioning.get("status") or {}).get("clusterName")
    return (name,) if name else ()


def belongs(management: Object, namespace: str, name: str) -> bool:
    """Whether these two are one cluster. What a provisioning Cluster says of itself is no proof: anybody may write it,
    so the management Cluster must name it too."""
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    known = made_for(management)
    if known is not None:
        return known == f"{namespace}/{name}" and workspace == namespace
    own = management["metadata"]["name"]
    return names.is_legacy(own) and own == name and workspace == namespace


def made_for(management: Object) -> str | None:
    """Namespace and name of the provisioning Cluster that came first; None of one that was made by hand."""
    return annotations_of(management).get(names.PROVISIONING_CLUSTER_OF)


_SHARED = (
    "localClusterAuthEndpoint",
    "clusterAgentDeploymentCustomization",
    "fleetAgentDeploymentCustomization",
    "webhookDeploymentCustomization",
    "defaultPodSecurityAdmissionConfigurationTemplateName",
    "defaultClusterRoleForProjectMembers",
    "enableNetworkPolicy",
)
"""What both specs have."""

_AGENT_DIRECTORY = "CATTLE_AGENT_VAR_DIR"


def management_of(provisioning: Object, name: str) -> Object:
    """The management Cluster of a provisioning Cluster, as it is made."""
    meta, spec = provisioning["metadata"], provisioning.get("spec") or {}
    administrated = {ADMINISTRATED: "true"} if is_provisioned_here(provisioning) else {}
    environment = _agent_environment(spec)
    return {
        "apiVersion": MANAGEMENT_CLUSTER.api_version,
        "kind": MANAGEMENT_CLUSTER.kind,
        "metadata": {
            "name": name,
            "labels": dict(labels_of(provisioning)),
            "annotations": {
                **_passed_on(annotations_of(provisioning)),
                **administrated,
                names.PROVISIONING_CLUSTER_OF: f"{meta['namespace']}/{meta['name']}",
            },
        },
        "spec": {
            "displayName": meta["name"],
            "fleetWorkspaceName": meta["namespace"],
            "importedConfig": {},
            **{key: spec[key] for key in _SHARED if spec.get(key) is not None},
            **({"agentEnvVars": environment} if environment else {}),
        },
    }


def followed(management: Object, provisioning: Object) -> Object:
    """The management Cluster of a cluster that is built here, after its provisioning Cluster has changed. That of an
    imported one is its own: it may be edited itself."""
    wanted = management_of(provisioning, management["metadata"]["name"])
    others = {key: value for key, value in management["spec"].items() if key not in (*_SHARED, "agentEnvVars")}
    meta = management["metadata"]
    joined = {part: {**(meta.get(part) or {}), **wanted["metadata"][part]} for part in ("labels", "annotations")}
    return {**management, "metadata": {**meta, **joined}, "spec": {**others, **wanted["spec"]}}


def _agent_environment(spec: Object) -> list[Object]:
    """Where the node agent keeps its data is told to whoever looks after it."""
    given = spec.get("agentEnvVars") or []
    directory = ((spec.get("rkeConfig") or {}).get("dataDirectories") or {}).get("systemAgent")
    return [*given, {"name": _AGENT_DIRECTORY, "value": directory}] if directory else list(given)


def provisioning_of(management: Object) -> Object:
    """The provisioning Cluster that follows from a management Cluster."""
    name, spec = management["metadata"]["name"], management["spec"]
    labels = {key: value for key, value in labels_of(management).items() if "cattle.io" not in key}
    return {
        "apiVersion": PROVISIONING_CLUSTER.api_version,
        "kind": PROVISIONING_CLUSTER.kind,
        "metadata": {
            "name": name,
            "namespace": spec["fleetWorkspaceName"],
            "labels": labels,
            "annotations": {names.MANAGEMENT_NAME: name},
        },
        "spec": {},
    }


def _passed_on(annotations: Mapping[str, str]) -> dict[str, str]:
    """All but what only the manager may write, and what belongs to one object alone."""
    return {
        key: value
        for key, value in annotations.items()
        if not key.startswith((names.PREFIX, "kubectl.kubernetes.io/"))
        and key not in (names.MANAGEMENT_NAME, ADMINISTRATED)
    }


# --- conditions -----------------------------------------------------------------------------------------------------


def progress(waiting: str, problem: str = "") -> Iterable[Condition]:
    """In the words of tools that know nothing of clusters: it is worked on, or cannot go on, or neither."""
    under_way = waiting and not problem
    yield condition(RECONCILING, "True", "Progressing", waiting) if under_way else condition(RECONCILING, "False", "")
    yield condition(STALLED, "True", "Error", problem) if problem else condition(STALLED, "False", "")


def connected_since(management: Object) -> str:
    return annotations_of(management).get(names.CONNECTED_SINCE, "")


def is_connected(management: Object) -> bool:
    return is_internal(management) or bool(connected_since(management))


def is_provisioned(management: Object) -> bool:
    """An agent has told once how the cluster's API is reached, which stays true while it is away."""
    reported = (management.get("status") or {}).get("apiEndpoint")
    return is_internal(management) or bool(reported) or is_true(management, PROVISIONED)


def management_conditions(management: Object, now: datetime) -> list[Condition]:
    """Of a cluster that is built here, what builds it tells whether it is provisioned."""
    provisioned = [] if is_administrated(management) else [_provisioned(management)]
    wanted = [_connected(management), *provisioned, *_ready(management), *_agent_conflict(management, now)]
    before = (management.get("status") or {}).get("conditions")
    return [_since(each, management, now) for each in merged_with_updates(before, wanted, now)]


def _connected(management: Object) -> Condition:
    if is_connected(management):
        return condition(CONNECTED, "True", CONNECTED)
    if not is_provisioned(management):
        return condition(CONNECTED, "False", "NeverConnected", _never_connected(management))
    return condition(CONNECTED, "False", DISCONNECTED, NOT_CONNECTED)


def _never_connected(management: Object) -> str:
    return BEING_BUILT if is_administrated(management) else NEVER_CONNECTED


def _provisioned(management: Object) -> Condition:
    if is_provisioned(management):
        return condition(PROVISIONED, "True", PROVISIONED)
    return condition(PROVISIONED, "False", WAITING, NEVER_CONNECTED)


def _ready(management: Object) -> Iterable[Condition]:
    """What provisions a cluster tells itself that it is ready while it works on it."""
    if (management.get("status") or {}).get("readyReconciling"):
        return
    if not is_provisioned(management):
        yield condition(READY, "False", WAITING, _never_connected(management))
    elif is_connected(management):
        yield condition(READY, "True", READY)
    else:
        yield condition(READY, "False", DISCONNECTED, NOT_CONNECTED)


_CONFLICTS = {
    "refused": "another agent tried to register and was refused",
    "replaced": "an agent with another CA registered in place of the one before",
    "displaced": "another agent registered in place of one through which the cluster did not answer",
}


def conflict_ends(management: Object) -> datetime | None:
    """Until when the last registration of another agent is reported."""
    at = moment(annotations_of(management).get(names.AGENT_CONFLICT, "").partition(" ")[0])
    return at + CONFLICT_REPORTED if at else None


def _agent_conflict(management: Object, now: datetime) -> Iterable[Condition]:
    """Whoever holds the registration token may try: owners of the cluster are to know."""
    ends = conflict_ends(management)
    if ends is None:
        return
    at, _, outcome = annotations_of(management)[names.AGENT_CONFLICT].partition(" ")
    if now >= ends:
        yield condition(AGENT_CONFLICT, "False", "")
        return
    message = f"{_CONFLICTS.get(outcome, outcome)} at {at}, with the registration token of this cluster"
    advice = f"if that was not you, delete Secret {names.token_secret(names.DEFAULT_TOKEN)} to replace the token"
    yield condition(AGENT_CONFLICT, "True", outcome.capitalize(), f"{message}; {advice}")


def _since(known: Condition, management: Object, now: datetime) -> Condition:
    """Connected has been true since the tunnel was there, not since somebody looked."""
    since = connected_since(management)
    turned_now = known["type"] == CONNECTED and known["status"] == "True" and since
    at = moment(since) if turned_now else None
    return {**known, "lastTransitionTime": since} if at and at <= now else known
