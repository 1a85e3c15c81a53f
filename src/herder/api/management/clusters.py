"""Managed clusters: how a provisioning Cluster and its management Cluster are paired, and the conditions of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from herder.api.capi.conditions import Condition, condition, is_true
from herder.api.capi.names import annotations_of, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.management import names
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.observe_only import OBSERVE_ONLY
from herder.api.rke.names import ADMINISTRATED
from herder.api.times import parse_time
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
"""Drivers of clusters whose agent reports how to reach their API."""


def is_internal(management: Object) -> bool:
    """Whether it is the manager's own cluster: it has no tunnel, and permissions in it are permissions in the manager.

    The name decides, because it is unique and admission lets only the manager create it. `spec.internal` alone is no
    proof: cluster owners can edit it.
    """
    is_local = management["metadata"]["name"] == names.LOCAL
    return is_local and bool((management.get("spec") or {}).get("internal"))


def owns_namespace(management: Object) -> bool:
    """Whether it owns the namespace of its name; until then, that namespace belongs to an earlier cluster
    of that name.
    """
    return is_true(management, NAMESPACE_CREATED)


def namespace_belongs_to_other(home: Object | None, management: Object) -> bool:
    """Whether the namespace of the cluster's name belongs to another cluster, so that its contents must be ignored.

    An earlier cluster of that name leaves it behind briefly, or permanently if it was deleted with
    propagationPolicy=Orphan. Users cannot create a cluster with the name of the manager's own.
    """
    if home is None or is_internal(management):
        return False
    owners = home["metadata"].get("ownerReferences") or ()
    return all(each.get("uid") != management["metadata"]["uid"] for each in owners)


def is_provisioned_here(provisioning: Object) -> bool:
    """Whether the cluster is provisioned here rather than imported."""
    return (provisioning.get("spec") or {}).get("rkeConfig") is not None


def is_administrated(management: Object) -> bool:
    """Return the same from the management Cluster."""
    return annotations_of(management).get(ADMINISTRATED) == "true"


def local_cluster() -> Object:
    """Build the management Cluster of the manager's own cluster; its provisioning Cluster is derived from it."""
    return {
        "apiVersion": MANAGEMENT_CLUSTER.api_version,
        "kind": MANAGEMENT_CLUSTER.kind,
        "metadata": {"name": names.LOCAL},
        "spec": {"displayName": names.LOCAL, "internal": True, "fleetWorkspaceName": names.LOCAL_WORKSPACE},
    }


# --- provisioning and management Cluster ----------------------------------------------------------------------------

BY_MANAGEMENT = "management-cluster"  # index of provisioning Clusters by `management_name`


def management_name(provisioning: Object) -> Iterable[str]:
    """Indexer: the management Cluster that a provisioning Cluster names in its status."""
    name = (provisioning.get("status") or {}).get("clusterName")
    return (name,) if name else ()


def are_paired(management: Object, namespace: str, name: str) -> bool:
    """Whether these two are the same cluster.

    The provisioning Cluster's status is no proof, because users can write it: the management Cluster must name it too.
    """
    workspace = (management.get("spec") or {}).get("fleetWorkspaceName")
    known = source_provisioning_cluster(management)
    if known is not None:
        return known == f"{namespace}/{name}" and workspace == namespace
    own = management["metadata"]["name"]
    return names.is_legacy(own) and own == name and workspace == namespace


def is_pair(management: Object, provisioning: Object) -> bool:
    """Whether each of the two names the other. A management Cluster may have been made for an earlier provisioning
    Cluster of the same name."""
    meta = provisioning["metadata"]
    is_named = management["metadata"]["name"] in management_name(provisioning)
    return is_named and are_paired(management, meta["namespace"], meta["name"])


def source_provisioning_cluster(management: Object) -> str | None:
    """Return namespace/name of the provisioning Cluster it was created for; None if it was created by a user."""
    return annotations_of(management).get(names.PROVISIONING_CLUSTER_OF)


AGENT_CUSTOMIZATION = "clusterAgentDeploymentCustomization"
SHARED = (
    "localClusterAuthEndpoint",
    AGENT_CUSTOMIZATION,
    "fleetAgentDeploymentCustomization",
    "webhookDeploymentCustomization",
    "defaultPodSecurityAdmissionConfigurationTemplateName",
    "defaultClusterRoleForProjectMembers",
    "enableNetworkPolicy",
)
"""Fields that both specs have."""

_AGENT_DIRECTORY = "CATTLE_AGENT_VAR_DIR"


def management_of(provisioning: Object, name: str) -> Object:
    """Build the management Cluster of a provisioning Cluster."""
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
            **{key: spec[key] for key in SHARED if spec.get(key) is not None},
            **({"agentEnvVars": environment} if environment else {}),
        },
    }


def updated_management(management: Object, provisioning: Object) -> Object:
    """Update the management Cluster from a changed provisioning Cluster.

    Only for provisioned clusters; that of an imported cluster may be edited itself.
    """
    wanted = management_of(provisioning, management["metadata"]["name"])
    others = {key: value for key, value in management["spec"].items() if key not in (*SHARED, "agentEnvVars")}
    meta = management["metadata"]
    joined = {part: {**(meta.get(part) or {}), **wanted["metadata"][part]} for part in ("labels", "annotations")}
    return {**management, "metadata": {**meta, **joined}, "spec": {**others, **wanted["spec"]}}


def _agent_environment(spec: Object) -> list[Object]:
    """Pass the node agent's data directory on to tools that manage the agent."""
    given = spec.get("agentEnvVars") or []
    directory = ((spec.get("rkeConfig") or {}).get("dataDirectories") or {}).get("systemAgent")
    return [*given, {"name": _AGENT_DIRECTORY, "value": directory}] if directory else list(given)


def provisioning_of(management: Object) -> Object:
    """Build the provisioning Cluster that is derived from a management Cluster."""
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
    """Return all annotations except the manager's own, and those specific to one object."""
    return {
        key: value
        for key, value in annotations.items()
        if not key.startswith((names.PREFIX, "kubectl.kubernetes.io/"))
        and key not in (names.MANAGEMENT_NAME, ADMINISTRATED, OBSERVE_ONLY)
    }


# --- conditions -----------------------------------------------------------------------------------------------------


def progress(waiting: str, problem: str = "", reason: str = "Error") -> Iterable[Condition]:
    """Return the kstatus conditions Reconciling and Stalled, for generic tools. `reason`: that of Stalled."""
    under_way = waiting and not problem
    yield condition(RECONCILING, "True", "Progressing", waiting) if under_way else condition(RECONCILING, "False", "")
    yield condition(STALLED, "True", reason, problem) if problem else condition(STALLED, "False", "")


def connected_since(management: Object) -> str:
    return annotations_of(management).get(names.CONNECTED_SINCE, "")


def is_connected(management: Object) -> bool:
    return is_internal(management) or bool(connected_since(management))


def has_connected(management: Object) -> bool:
    """Whether an agent is connected, or was before: it reports its API endpoint when it registers."""
    reported = (management.get("status") or {}).get("apiEndpoint")
    return is_connected(management) or bool(reported) or is_true(management, CONNECTED)


def is_provisioned(management: Object) -> bool:
    """Return the conditions; for a provisioned cluster, the planner reports Provisioned."""
    reported = (management.get("status") or {}).get("apiEndpoint")
    return is_internal(management) or bool(reported) or is_true(management, PROVISIONED)


def management_conditions(management: Object, now: datetime, *, reconciling: bool = False) -> list[Condition]:
    """Report Ready, unless the provisioner reports it itself while it works on the cluster."""
    provisioned = [] if is_administrated(management) else [_provisioned(management)]
    ready = [] if reconciling else [_ready(management)]
    wanted = [_connected(management), *provisioned, *ready, *_agent_conflict(management, now)]
    before = (management.get("status") or {}).get("conditions")
    return [_since(each, management, now) for each in merged_with_updates(before, wanted, now)]


def _connected(management: Object) -> Condition:
    if is_connected(management):
        return condition(CONNECTED, "True", CONNECTED)
    if not has_connected(management):
        return condition(CONNECTED, "False", "NeverConnected", _not_connected_yet(management))
    return condition(CONNECTED, "False", DISCONNECTED, NOT_CONNECTED)


def _not_connected_yet(management: Object) -> str:
    return BEING_BUILT if is_administrated(management) else NEVER_CONNECTED


def _provisioned(management: Object) -> Condition:
    if is_provisioned(management):
        return condition(PROVISIONED, "True", PROVISIONED)
    return condition(PROVISIONED, "False", WAITING, NEVER_CONNECTED)


def _ready(management: Object) -> Condition:
    if not is_provisioned(management):
        return condition(READY, "False", WAITING, _not_connected_yet(management))
    if is_connected(management):
        return condition(READY, "True", READY)
    return condition(READY, "False", DISCONNECTED, NOT_CONNECTED)


_CONFLICTS = {
    "refused": "another agent tried to register and was refused",
    "replaced": "an agent with another CA registered in place of the one before",
    "displaced": "another agent registered in place of one through which the cluster did not answer",
}


def conflict_ends(management: Object) -> datetime | None:
    """Return until when the last registration conflict is reported."""
    at = parse_time(annotations_of(management).get(names.AGENT_CONFLICT, "").partition(" ")[0])
    return at + CONFLICT_REPORTED if at else None


def _agent_conflict(management: Object, now: datetime) -> Iterable[Condition]:
    """Anyone with the registration token can try to register: report it to the owners of the cluster."""
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
    """Connected is true since the tunnel was opened, not since it was observed."""
    since = connected_since(management)
    is_connected_condition = known["type"] == CONNECTED and known["status"] == "True" and since
    at = parse_time(since) if is_connected_condition else None
    return {**known, "lastTransitionTime": since} if at and at <= now else known
