"""Rights of the manager on the cluster that it runs on, each with its reason.

A ClusterRole per part of the manager, and Roles where the rights are needed in one namespace only. Server-side apply
needs `create` and `patch`. Controllers read a kind with `list` and `watch`, and with `get` after a write without a
response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from herder.api.capi import core as cores
from herder.api.capi import kinds as capi
from herder.api.capi.inventory import NAMESPACE, PROVIDERS
from herder.api.identity import policies, tenancy_policies
from herder.api.inmemory import kinds as inmemory
from herder.api.machines import archive, hosts, jobs
from herder.api.machines import kinds as machines
from herder.api.management import kinds as management
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.api.policies import POLICY, POLICY_BINDING
from herder.api.references.catalogue import VERSIONS
from herder.api.rke import kinds as rke
from herder.api.rke.node import reports
from herder.api.settings import SETTING
from herder.engine.meta.kinds import Kind
from herder.gateway.proxy.impersonation.identity import EXTRAS
from herder.gateway.webhooks import reference_review, secret_path
from herder.gateway.webhooks.configurations import CLUSTER_API_NAME, CLUSTERS_NAME, MACHINES_NAME
from herder.gateway.webhooks.reconcile import SECRET_NAME as WEBHOOK_CERTIFICATES

LISTED = ("list", "watch")
READ = ("get", *LISTED)
APPLY = ("create", "patch")
EDIT = (*READ, *APPLY)
OWN = (*EDIT, "delete")
STATUS = ("patch",)


@dataclass(frozen=True, slots=True)
class Right:
    """Verbs on resources of an API group. `names` limits them to objects, `namespace` to a namespace."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str
    names: tuple[str, ...] = ()
    namespace: str = ""


def _on(
    kinds: Kind | Iterable[Kind],
    verbs: tuple[str, ...],
    reason: str,
    *,
    subresource: str = "",
    names: Iterable[str] = (),
    namespace: str = "",
) -> Right:
    listed = (kinds,) if isinstance(kinds, Kind) else tuple(kinds)
    (group,) = {kind.group for kind in listed}
    resources = tuple(f"{kind.plural}/{subresource}" if subresource else kind.plural for kind in listed)
    return Right(group, resources, verbs, reason, tuple(sorted(names)), namespace)


# --- always ---------------------------------------------------------------------------------------------------------

_EVENT = Kind("", "v1", "Event", "events")
_CONFIG_MAP = archive.CONFIG_MAP
_WEBHOOKS = (cores.MUTATING_WEBHOOKS, cores.VALIDATING_WEBHOOKS)
_CONFIGURATIONS = (CLUSTER_API_NAME, CLUSTERS_NAME, MACHINES_NAME, reference_review.NAME)
_REFERENCES = "look up objects that users reference"
_CONTENTS = "look up objects that users reference, and mount them in pods of the runner"
ELECTION_LEASE = "herder-controllers"

BASE = (
    _on(cores.CRD, EDIT, "install its own kinds, and find the kinds of providers and node drivers"),
    _on(SETTING, EDIT, "publish its settings and read their values"),
    _on(capi.NAMESPACE, ("create",), "create its own namespaces"),
    _on(_EVENT, APPLY, "record Events about the objects that it changes"),
    _on(_WEBHOOKS, LISTED, "find the webhooks of another Cluster API core, and changes of its own"),
    _on(_WEBHOOKS, APPLY, "register its webhooks", names=_CONFIGURATIONS),
    _on(cores.DEPLOYMENT, LISTED, "find another Cluster API core"),
    _on(cores.LEASE, LISTED, "find another Cluster API core", names=(cores.LEASE_NAME,)),
    _on(PROVIDERS, LISTED, "find another Cluster API core"),
    Right("authorization.k8s.io", ("subjectaccessreviews",), ("create",), "check the rights of users"),
    *(Right(group, ("*",), ("get",), _REFERENCES) for group in sorted(VERSIONS) if group),
    _on((capi.SECRET, _CONFIG_MAP), ("get",), _CONTENTS),
    _on(management.PROVISIONING_CLUSTER, ("list",), _REFERENCES),
    _on(rke.CONTROL_PLANE, ("list",), _REFERENCES),
    _on(cores.LEASE, ("create",), "elect a leader", namespace=NAMESPACE),
    _on(cores.LEASE, ("get", "update"), "elect a leader", names=(ELECTION_LEASE,), namespace=NAMESPACE),
    _on(capi.SECRET, ("create",), "create the certificates and the path of its webhooks", namespace=NAMESPACE),
    _on(
        capi.SECRET,
        ("get", "update", "watch"),
        "read and renew the certificates of its webhooks",
        names=(WEBHOOK_CERTIFICATES, secret_path.NAME),
        namespace=NAMESPACE,
    ),
)

# --- Cluster API core -----------------------------------------------------------------------------------------------

_MEMBERS = (capi.MACHINE_DEPLOYMENT, capi.MACHINE_SET, capi.MACHINE)
_CORE_KINDS = (capi.CLUSTER, *_MEMBERS, capi.MACHINE_HEALTH_CHECK)

CORE = (
    _on(_CORE_KINDS, (*READ, "patch"), "reconcile Clusters and machines"),
    _on((capi.MACHINE_SET, capi.MACHINE), ("create",), "create the machines of MachineDeployments"),
    _on((*_MEMBERS, capi.MACHINE_POOL), ("delete",), "delete the machines of Clusters and MachineDeployments"),
    _on(_CORE_KINDS, STATUS, "report their status", subresource="status"),
    _on((capi.MACHINE_DRAIN_RULE, capi.MACHINE_POOL), LISTED, "drain Nodes by their rules, and wait for machine pools"),
    _on(rke.CONTROL_PLANE, LISTED, "pause health checks during operations"),
    _on(capi.SECRET, READ, "connect to Clusters with their kubeconfig Secrets"),
    _on(PROVIDERS, ("get", *APPLY, "delete"), "list itself for clusterctl", namespace=NAMESPACE),
    _on(_WEBHOOKS, ("delete",), "remove its webhooks when another core appears", names=(CLUSTER_API_NAME,)),
)

# --- in-memory provider ---------------------------------------------------------------------------------------------

_SIMULATED = (inmemory.IN_MEMORY_CLUSTER, inmemory.IN_MEMORY_CONTROL_PLANE)

IN_MEMORY = (
    _on(_SIMULATED, (*READ, "patch", "delete"), "simulate clusters"),
    _on(_SIMULATED, STATUS, "report their status", subresource="status"),
    _on((inmemory.IN_MEMORY_MACHINE, inmemory.IN_MEMORY_BOOTSTRAP), OWN, "simulate machines"),
    _on(
        (inmemory.IN_MEMORY_MACHINE_TEMPLATE, inmemory.IN_MEMORY_BOOTSTRAP_TEMPLATE),
        (*READ, "patch"),
        "create machines from templates",
    ),
    _on(capi.MACHINE, OWN, "create the Machines of a simulated control plane"),
    _on(capi.CLUSTER, READ, "follow the Clusters that it simulates"),
    _on(capi.SECRET, OWN, "certificate authorities, kubeconfigs and bootstrap data of simulated clusters"),
    _on(PROVIDERS, APPLY, "list itself for clusterctl", namespace=NAMESPACE),
)

# --- machine provider -----------------------------------------------------------------------------------------------

MACHINES = (
    _on(cores.CRD, ("delete",), "remove the kinds of inactive node drivers"),
    _on(machines.NODE_DRIVER, EDIT, "register node drivers and follow their state"),
    _on(machines.DYNAMIC_SCHEMA, OWN, "publish the fields of node drivers"),
    Right(machines.MACHINE_GROUP, ("*",), OWN, "provision machines; the kinds depend on the active node drivers"),
    Right(machines.CONFIG_GROUP, ("*",), (*READ, "patch", "delete"), "read the machine configs of Clusters"),
    _on((capi.CLUSTER, capi.MACHINE), READ, "follow the Machines that it provisions"),
    _on(capi.NAMESPACE, LISTED, "create nothing in namespaces that are being deleted"),
    _on(capi.MACHINE, ("delete",), "replace machines that could not be created"),
    _on(capi.SECRET, (*OWN, "update"), "cloud credentials, and the state and files of machines"),
    _on(jobs.SERVICE_ACCOUNT, OWN, "accounts of machine Jobs"),
    _on((jobs.ROLE, jobs.ROLE_BINDING), OWN, "grant machine Jobs and creators of cloud credentials their Secret"),
    _on(jobs.ROLE, ("bind",), "let Jobs of the driver pod create pods", names=(jobs.POD_DRIVER_ROLE,)),
    _on(jobs.JOB, (*READ, "create", "delete"), "run machine Jobs"),
    _on(capi.POD, READ, "report why a machine Job fails"),
    _on(capi.POD, ("get",), "archive the logs of machine Jobs", subresource="log"),
    _on(_CONFIG_MAP, OWN, "archive the logs of machine Jobs"),
)

# --- gateway: managed clusters and users ----------------------------------------------------------------------------

_RBAC = jobs.ROLE.group
_ROLES, _BINDINGS = ("clusterroles", "roles"), ("clusterrolebindings", "rolebindings")
_GRANTING = (
    management.GLOBAL_ROLE,
    management.GLOBAL_ROLE_BINDING,
    management.ROLE_TEMPLATE,
    management.CLUSTER_BINDING,
    management.PROJECT_BINDING,
)
_POLICIES = tuple(
    policy["metadata"]["name"] for policy, _ in (*policies.POLICIES, *tenancy_policies.POLICIES, reports.POLICY)
)
_CLUSTERS, _OPERATIONS = "provision, import and delete clusters", "run operations of clusters"
_FORWARD, _MARK = "forward requests of users in their name", "admission policies recognize the manager by this right"

GATEWAY = (
    _on(capi.NAMESPACE, (*LISTED, "patch", "delete"), "namespaces of clusters and projects"),
    _on(management.PROVISIONING_CLUSTER, EDIT, _CLUSTERS),
    _on(management.PROVISIONING_CLUSTER, STATUS, _CLUSTERS, subresource="status"),
    _on(management.MANAGEMENT_CLUSTER, OWN, _CLUSTERS),
    _on(management.MANAGEMENT_CLUSTER, STATUS, _CLUSTERS, subresource="status"),
    _on((management.REGISTRATION_TOKEN, management.PROJECT), EDIT, _CLUSTERS),
    _on(
        (rke.RKE_CLUSTER, rke.CONTROL_PLANE, rke.BOOTSTRAP, rke.BOOTSTRAP_TEMPLATE, rke.CUSTOM_MACHINE), OWN, _CLUSTERS
    ),
    _on(
        (rke.RKE_CLUSTER, rke.CONTROL_PLANE, rke.BOOTSTRAP, rke.CUSTOM_MACHINE),
        STATUS,
        _CLUSTERS,
        subresource="status",
    ),
    _on((capi.CLUSTER, capi.MACHINE_DEPLOYMENT, capi.MACHINE_HEALTH_CHECK, capi.MACHINE), OWN, _CLUSTERS),
    _on(capi.MACHINE, STATUS, "report the state of plans", subresource="status"),
    _on(rke.ETCD_SNAPSHOT, OWN, _OPERATIONS),
    _on(rke.BEACON, EDIT, _OPERATIONS),
    _on(rke.BEACON, STATUS, _OPERATIONS, subresource="status"),
    _on(capi.SECRET, (*OWN, "update"), "tokens, passwords, kubeconfigs, plans and keys of clusters"),
    _on(jobs.SERVICE_ACCOUNT, OWN, "accounts of nodes, each limited to its own plan"),
    _on(_CONFIG_MAP, OWN, "provisioning logs, and kubeconfigs of users"),
    _on(management.USER, EDIT, "users and their rights"),
    _on(management.TOKEN, OWN, "tokens of users"),
    _on((management.GLOBAL_ROLE, management.ROLE_TEMPLATE), EDIT, "install built-in roles"),
    _on(management.GLOBAL_ROLE_BINDING, EDIT, "rights of users"),
    _on(management.CLUSTER_BINDING, OWN, "rights of users"),
    _on(management.PROJECT_BINDING, (*READ, "patch", "delete"), "rights of users"),
    Right(_RBAC, (*_ROLES, *_BINDINGS), EDIT, "grant users their rights"),
    Right(_RBAC, ("roles", *_BINDINGS), ("delete",), "revoke rights of users"),
    Right(_RBAC, _ROLES, ("bind", "escalate"), "grant rights that it does not have: a GlobalRole may have any rule"),
    Right(
        management.GROUP,
        (management.MANAGEMENT_CLUSTER.plural, *(kind.plural for kind in _GRANTING)),
        ("escalate",),
        _MARK,
    ),
    _on(management.PROVISIONING_CLUSTER, ("escalate",), _MARK),
    Right("", ("groups", "serviceaccounts", "users"), ("impersonate",), _FORWARD),
    Right("authentication.k8s.io", tuple(f"userextras/{extra}" for extra in EXTRAS), ("impersonate",), _FORWARD),
    Right("authentication.k8s.io", ("tokenreviews",), ("create",), "authenticate nodes"),
    _on((POLICY, POLICY_BINDING), APPLY, "protect its objects from users", names=_POLICIES),
    _on(cores.LEASE, (*LISTED, *APPLY, "delete"), "find the other replicas", namespace=SYSTEM_NAMESPACE),
)

# --- runner ---------------------------------------------------------------------------------------------------------

RUNNER = (
    _on(capi.NODE, ("get", *APPLY), "register this host as a Node"),
    _on(capi.NODE, STATUS, "report the status of the Node", subresource="status"),
    _on(cores.LEASE, APPLY, "renew the Lease of the Node", namespace="kube-node-lease"),
    _on(capi.POD, (*READ, "delete"), "run the pods of this Node"),
    _on(capi.POD, STATUS, "report the status of the pods", subresource="status"),
    _on(capi.POD, ("create",), "bind pods to this Node", subresource="binding"),
    _on(jobs.SERVICE_ACCOUNT, ("get",), "run pods with their accounts"),
    _on(jobs.SERVICE_ACCOUNT, ("create",), "issue tokens for pods", subresource="token"),
    _on(
        _CONFIG_MAP,
        ("get",),
        "authenticate the API server",
        names=("extension-apiserver-authentication",),
        namespace="kube-system",
    ),
    _on(
        capi.SECRET, APPLY, "publish the host daemon for machine Jobs", names=(hosts.HOST_SECRET,), namespace=NAMESPACE
    ),
)

PARTS: Mapping[str, tuple[Right, ...]] = {
    "base": BASE,
    "core": CORE,
    "machines": MACHINES,
    "gateway": GATEWAY,
    "in-memory": IN_MEMORY,
    "runner": RUNNER,
}
"""Rights by part of the manager. Each flag of `herder run` that enables a part needs its rights."""
