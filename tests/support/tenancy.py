"""Writes by which a user could gain rights: one table for every way in which admission is enforced.

The user of the table may create Secrets, clusters and projects in every namespace and edit clusters and namespaces,
which is more than any default role grants: what is rejected here is rejected by admission, not by RBAC.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from herder.api.capi.core import DEPLOYMENT, LEASE, LEASE_NAME
from herder.api.capi.inventory import CORE_PROVIDER, PROVIDERS
from herder.api.capi.kinds import CLUSTER, NAMESPACE, SECRET
from herder.api.capi.names import PROVIDER
from herder.api.identity.creators import CREATOR_BOUND
from herder.api.identity.projects import PROJECT_ID
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, cluster_role, cluster_role_binding
from herder.api.machines.credentials import CREATED_BY, CREATOR, CREDENTIAL_TYPE, RIGHTS_FINALIZER
from herder.api.machines.jobs import CREDENTIAL_ANNOTATION, ROLE
from herder.api.machines.names import STATE_SECRET_TYPE
from herder.api.management.clusters import NAMESPACE_CREATED
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROJECT, PROVISIONING_CLUSTER, REGISTRATION_TOKEN
from herder.api.management.names import MANAGEMENT_NAME, TOKEN_LABEL
from herder.api.observe_only import OBSERVE_ONLY
from herder.api.rke import names
from herder.api.rke.kinds import CONTROL_PLANE, ETCD_SNAPSHOT
from herder.engine.client.client import Client
from herder.engine.meta.errors import AlreadyExists
from herder.engine.meta.kinds import Kind, Object

USER = "mallory"
TOKEN_TYPE = "kubernetes.io/service-account-token"
ACCOUNT = "kubernetes.io/service-account.name"
WRITER_ROLE = "tenancy-writer"
EDITORS = ("editor", "system:serviceaccount:fleet-default:bot")
"""Users who can write all Secrets, as editors of a namespace can; the other is an account that an admin created."""
EDITOR_ROLE = "tenancy-editor"
EDITOR_RULES = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete", "get", "patch", "update"]}]
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["held"], "verbs": ["get", "patch", "update"]},
    {
        "apiGroups": [""],
        "resources": ["namespaces", "namespaces/status"],
        "verbs": ["create", "patch", "update", "get"],
    },
    {
        "apiGroups": ["management.cattle.io"],
        "resources": ["clusters", "clusterregistrationtokens", "projects"],
        "verbs": ["create", "delete", "patch", "update", "get"],
    },
    {
        "apiGroups": ["provisioning.cattle.io"],
        "resources": ["clusters", "clusters/status"],
        "verbs": ["create", "delete", "patch", "update", "get"],
    },
    {"apiGroups": [CLUSTER.group], "resources": [CLUSTER.plural], "verbs": ["create", "delete", "patch", "get"]},
    {
        "apiGroups": [CONTROL_PLANE.group],
        "resources": ["rkecontrolplanes", "rkecontrolplanes/status", "etcdsnapshots"],
        "verbs": ["create", "delete", "patch", "get"],
    },
    {"apiGroups": [RBAC], "resources": ["roles"], "verbs": ["create", "delete", "patch", "update", "get"]},
    {"apiGroups": [PROVIDERS.group], "resources": [PROVIDERS.plural], "verbs": ["create", "patch"]},
    {"apiGroups": [LEASE.group], "resources": [LEASE.plural], "verbs": ["create", "patch"]},
    {"apiGroups": [DEPLOYMENT.group], "resources": [DEPLOYMENT.plural], "verbs": ["create", "patch"]},
]


@dataclass(frozen=True)
class Case:
    """A create by the user; with `patch`, a merge patch by the user of an object that an administrator created; with
    `delete_options`, a delete of such an object.
    """

    id: str
    kind: Kind
    meta: Object
    fields: Object = field(default_factory=dict)
    patch: Object | None = None
    subresource: str = ""  # to patch
    delete_options: Object | None = None
    status: Object | None = None  # that the manager has reported

    @property
    def object(self) -> Object:
        return {"apiVersion": self.kind.api_version, "kind": self.kind.kind, "metadata": self.meta, **self.fields}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _secret(id_: str, name: str, namespace: str = "fleet-default", *, type: str = "", **meta: Any) -> Case:
    fields: Object = {"type": type} if type else {}
    return Case(id_, SECRET, {"name": name, "namespace": namespace, **meta}, fields)


def _managed(id_: str, name: str, patch: Object | None = None, **spec: Any) -> Case:
    return Case(id_, MANAGEMENT_CLUSTER, {"name": name}, {"spec": spec}, patch)


def _provisioned(id_: str, name: str, namespace: str = "fleet-default", **annotations: str) -> Case:
    return Case(
        id_,
        PROVISIONING_CLUSTER,
        {"name": name, "namespace": namespace, "annotations": annotations},
        {"spec": {}},
    )


def _account_token(id_: str, name: str, data: Object | None = None, *, string: bool = False) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": {ACCOUNT: "default"}}
    fields: Object = {} if data is None else {"stringData" if string else "data": data}
    return Case(id_, SECRET, meta, {"type": TOKEN_TYPE, **fields})


def _project(id_: str, name: str, cluster: str = "default") -> Case:
    return Case(id_, PROJECT, {"name": name, "namespace": "default"}, {"spec": {"clusterName": cluster}})


_CONTROLLER = {"apiVersion": "rke.cattle.io/v1", "kind": "RKEBootstrap", "name": "x", "uid": "1", "controller": True}

REFUSED = (
    # Management Clusters.
    _managed("internal", "c-internal", internal=True),
    _managed("becomes internal", "c-later", {"spec": {"internal": True}}),
    _managed("the manager's own name", "local"),
    _managed("a system namespace", "kube-system"),
    _managed("a system namespace to come", "cattle-fleet-system"),
    _managed("an ordinary name of a namespace", "payroll"),
    Case("a generated name", MANAGEMENT_CLUSTER, {"generateName": "kube-"}, {"spec": {}}),
    _managed("the namespace of a project", "c-m-abcdefgh-p-xyz"),
    _managed("the generated name of another cluster", "c-m-abcdefgh"),
    Case("a prefix of generated names", MANAGEMENT_CLUSTER, {"generateName": "c-m-abc"}, {"spec": {}}),
    _managed("a workspace in a system namespace", "c-aaaaa", fleetWorkspaceName="kube-system"),
    # Provisioning Clusters.
    _provisioned("asks for a system namespace", "p-one", **{MANAGEMENT_NAME: "cattle-system"}),
    _provisioned("asks for the manager's own", "p-two", **{MANAGEMENT_NAME: "local"}),
    _provisioned("asks for the generated name of another cluster", "p-four", **{MANAGEMENT_NAME: "c-m-abcdefgh"}),
    _provisioned("in a system namespace", "p-three", "kube-system"),
    _provisioned("the manager's own name in another namespace", "local"),
    _provisioned("the name of the pair of a management Cluster", "c-aaaa1"),
    Case(
        "a generated name of such a pair",
        PROVISIONING_CLUSTER,
        {"generateName": "c-", "namespace": "fleet-default"},
        {"spec": {}},
    ),
    # Projects.
    _project("a project of another cluster", "p-x", "local"),
    _project("a project with a dash", "p-x-y"),
    Case(
        "a namespace joins a project",
        NAMESPACE,
        {"name": "tenancy-joins"},
        patch={"metadata": {"annotations": {PROJECT_ID: "local:p-abcde"}}},
    ),
    Case(
        "a namespace joins a project by its status",
        NAMESPACE,
        {"name": "tenancy-joins-too"},
        patch={"metadata": {"annotations": {PROJECT_ID: "local:p-abcde"}}},
        subresource="status",
    ),
    # Credentials that only the manager issues.
    _account_token("a token of their own", "forged", {"token": _encoded("mine")}),
    _account_token("a token of their own in plain text", "forged-plain", {"token": "mine"}, string=True),
    _account_token("a token of an account that they may not use", "borrowed"),
    Case(
        "a registration token of their own",
        REGISTRATION_TOKEN,
        {"name": "forged", "namespace": "default"},
        {"spec": {"clusterName": "default"}, "status": {"token": "mine"}},
    ),
    _secret("labelled as bootstrap token", "labelled", labels={names.ACCOUNT_ROLE: names.ACCOUNT_FOR_BOOTSTRAP}),
    _secret("labelled as registration token", "labelled-2", labels={TOKEN_LABEL: "default-token"}),
    _secret("labelled as request of a machine, without a value", "labelled-3", labels={names.REQUEST_FOR: ""}),
    _secret("a plan", "some-plan", type=names.PLAN_SECRET_TYPE),
    _secret("a request of a machine", "some-request", type=names.REQUEST_SECRET_TYPE),
    _secret("what machines join with", "some-state", type=names.TOKENS_SECRET_TYPE),
    _secret("owned by an object of the manager", "owned", ownerReferences=[_CONTROLLER]),
    _secret("named as a kubeconfig", "meadow-kubeconfig"),
    _secret("named as an authority", "meadow-ca"),
    _secret("named as a plan", "pool-1-abc-machine-plan"),
    _secret("named as an agent's credential", "cluster-serviceaccounttoken-c-m-abcdefgh", "cattle-global-data"),
    _secret("with an empty mark of the manager", "cc-empty", annotations={CREATOR: USER, CREATED_BY: ""}),
    _secret("in the name of another user", "cc-theirs", type=CREDENTIAL_TYPE, annotations={CREATOR: "victim"}),
    Case(
        "a credential that exists becomes their own",
        SECRET,
        {"name": "held", "namespace": "default"},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"annotations": {CREATOR: USER}}},
    ),
)

ALLOWED = (
    _managed("a cluster", "c-m-tenancy", displayName="barn"),
    Case("a generated name", MANAGEMENT_CLUSTER, {"generateName": "c-"}, {"spec": {}}),
    _managed("a label", "c-labelled", {"metadata": {"labels": {"a": "b"}}}),
    _managed("a legacy cluster", "c-bbbbb", fleetWorkspaceName="fleet-default"),
    _provisioned("a provisioned cluster", "tenancy"),
    _provisioned("with a name of its own", "tenancy-2", **{MANAGEMENT_NAME: "c-own-22222222"}),
    _project("a project", "p-fine"),
    Case("a namespace", NAMESPACE, {"name": "tenancy-plain"}, patch={"metadata": {"labels": {"a": "b"}}}),
    Case(
        "a registration token",
        REGISTRATION_TOKEN,
        {"name": "fine", "namespace": "default"},
        {"spec": {"clusterName": "default"}},
    ),
    _secret("a credential", "cc-mine", type=CREDENTIAL_TYPE, annotations={CREATOR: USER}),
    _secret("a credential of older managers", "cc-old", "cattle-global-data", annotations={CREATOR: USER}),
    _secret("a registry's login", "registry", type=names.AUTH_SECRET_TYPE, annotations={CREATOR: USER}),
    _secret("any Secret", "files-of-mine", annotations={CREATOR: USER}),
)

UNNAMED = (
    _secret("a credential", "unnamed-cc", type=CREDENTIAL_TYPE),
    _secret("a credential of older managers", "unnamed-old", "cattle-global-data"),
    _secret("a registry's login", "unnamed-registry", type=names.AUTH_SECRET_TYPE),
)
"""Secrets without the creator annotation: the embedded server adds it, a policy can only reject them."""


def _orphaned(kind: Kind, name: str, namespace: str = "", **fields: Any) -> tuple[Case, ...]:
    """Every way to keep dependents of an object when it is deleted."""
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    held = {"finalizers": ["orphan"]}
    return (
        Case(f"{kind.plural} deleted with Orphan", kind, meta, fields, delete_options={"propagationPolicy": "Orphan"}),
        Case(f"{kind.plural} deleted in the old way", kind, meta, fields, delete_options={"orphanDependents": True}),
        Case(f"{kind.plural} created with the finalizer", kind, {**meta, **held, "name": f"{name}-2"}, fields),
    )


ORPHANED = (
    *_orphaned(MANAGEMENT_CLUSTER, "c-orphans", spec={}),
    *_orphaned(PROVISIONING_CLUSTER, "orphans", "fleet-default", spec={}),
    *_orphaned(SECRET, "orphans", "fleet-default", type=CREDENTIAL_TYPE),
    _managed("a cluster is given the finalizer", "c-orphans", {"metadata": {"finalizers": ["orphan"]}}),
    Case(
        "a cluster without the finalizer that ends rights is deleted",
        MANAGEMENT_CLUSTER,
        {"name": "c-open", "annotations": {CREATOR_BOUND: "true"}},
        {"spec": {}},
        delete_options={"propagationPolicy": "Background"},
    ),
    Case(
        "an administrator's cluster without that finalizer is deleted",
        MANAGEMENT_CLUSTER,
        {"name": "c-open-2"},
        {"spec": {}},
        delete_options={"propagationPolicy": "Background"},
        status={"conditions": [{"type": NAMESPACE_CREATED, "status": "True"}]},
    ),
    Case(
        "a credential loses the finalizer that ends rights",
        SECRET,
        {"name": "held", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": None}},
    ),
)
"""Writes and deletions that would leave objects behind that grant rights by the name of the deleted object."""


OUTLASTING = (
    *_orphaned(SECRET, "edited", "fleet-default", type=CREDENTIAL_TYPE),
    Case(
        "a credential is given the finalizer",
        SECRET,
        {"name": "edited-3", "namespace": "fleet-default"},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": ["orphan"]}},
    ),
    Case(
        "a credential loses the finalizer that ends rights",
        SECRET,
        {"name": "edited-4", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"finalizers": None}},
    ),
)
"""Writes and deletions by which an editor keeps the rights of a creator when those of an editor end."""
REDIRECTED = tuple(
    Case(
        f"the credential of a machine becomes {value}",
        SECRET,
        {"name": "edited-machine-state", "namespace": "fleet-default"}
        | {"annotations": {CREDENTIAL_ANNOTATION: "a/b"}},
        {"type": STATE_SECRET_TYPE},
        {"metadata": {"annotations": {CREDENTIAL_ANNOTATION: value}}},
    )
    for value in ("cattle-global-data/theirs", None)
)
"""Writes by which an editor makes the manager report a machine on a Secret of another namespace."""
EDITED = (
    _orphaned(SECRET, "edited-plain", "fleet-default", type="Opaque")[0],
    Case(
        "a label of a credential",
        SECRET,
        {"name": "edited-5", "namespace": "fleet-default", "finalizers": [RIGHTS_FINALIZER]},
        {"type": CREDENTIAL_TYPE},
        {"metadata": {"labels": {"a": "b"}}},
    ),
    Case(
        "the state of a machine",
        SECRET,
        {"name": "edited-2-machine-state", "namespace": "fleet-default"}
        | {"annotations": {CREDENTIAL_ANNOTATION: "a/b"}},
        {"type": STATE_SECRET_TYPE},
        {"stringData": {"key": "value"}},
    ),
)


MOVED = tuple(
    _managed(
        f"to {place or 'none'}",
        f"c-moved-{place}x",
        {"spec": {"fleetWorkspaceName": place}},
        fleetWorkspaceName="fleet-local",
    )
    for place in ("", "fleet-default")
)
"""A management Cluster outside its workspace no longer belongs to its provisioning Cluster, and outlives it."""


def _of_creator(id_: str, patch: Object) -> Case:
    meta = {"name": "held", "namespace": "cattle-global-data", "annotations": {CREATED_BY: "somebody"}}
    return Case(id_, SECRET, meta, {"type": CREDENTIAL_TYPE}, patch)


def _taken(name: str, patch: Object, marks: Object | None = None, **fields: Any) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": {CREATOR: "somebody", **(marks or {})}}
    return Case(name, SECRET, meta, {"data": {"zz-vcenter": _encoded("theirs")}, **fields}, patch)


TAKEN = (
    _taken("taken-plain", {"stringData": {"password": "value"}}),
    _taken("taken-registry", {"data": {"password": _encoded("value")}}, type=names.AUTH_SECRET_TYPE),
    _taken("taken-credential", {"data": {"password": _encoded("value")}}, type=CREDENTIAL_TYPE),
    _taken("taken-marked", {"stringData": {"password": "value"}}, {CREATED_BY: ""}),
)
"""What an administrator's `kubectl apply` sends if a user created a Secret of that name: keys and annotations of that
user remain, such as the cluster that the content is synced into, or the server that gets the password."""

OVERWRITTEN = (
    _of_creator("its data", {"stringData": {"key": "value"}}),
    _of_creator("its creator", {"metadata": {"annotations": {CREATED_BY: USER}}}),
    _of_creator("no creator", {"metadata": {"annotations": {CREATED_BY: None}}}),
)
"""Writes to a credential that another user created and can read."""


_OWNER = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": MANAGEMENT_CLUSTER.kind, "name": "c-mine", "uid": "1-2"}
OWNED = (
    _managed("a management Cluster is given an owner", "c-owned", {"metadata": {"ownerReferences": [_OWNER]}}),
    Case(
        "a provisioning Cluster is given an owner",
        PROVISIONING_CLUSTER,
        {"name": "owned", "namespace": "fleet-default"},
        {"spec": {}},
        {"metadata": {"ownerReferences": [_OWNER]}},
    ),
    Case(
        "a provisioning Cluster is created with an owner",
        PROVISIONING_CLUSTER,
        {"name": "owned-2", "namespace": "fleet-default", "ownerReferences": [_OWNER]},
        {"spec": {}},
    ),
)
"""Owners of clusters. The garbage collector deletes a cluster with its owner, whoever deletes that."""


def _core(id_: str, name: str, patch: Object | None = None, **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    return Case(id_, CLUSTER, meta, {"spec": {"paused": False}}, patch)


_MARK, _NO_MARK = ({"metadata": {"annotations": {OBSERVE_ONLY: value}}} for value in ("", None))
WITHHELD = (
    _managed("a management Cluster becomes observe-only", "c-observed", _MARK),
    Case(
        "a management Cluster is created observe-only",
        MANAGEMENT_CLUSTER,
        {"name": "c-observed-2", "annotations": {OBSERVE_ONLY: "x"}},
        {"spec": {}},
    ),
    Case(
        "a management Cluster is resumed",
        MANAGEMENT_CLUSTER,
        {"name": "c-observed-3", "annotations": {OBSERVE_ONLY: "x"}},
        {"spec": {}},
        _NO_MARK,
    ),
    _provisioned("a provisioning Cluster is created observe-only", "observed", **{OBSERVE_ONLY: "x"}),
    Case(
        "a provisioning Cluster becomes observe-only",
        PROVISIONING_CLUSTER,
        {"name": "observed-2", "namespace": "fleet-default"},
        {"spec": {}},
        _MARK,
    ),
    _core("a Cluster API Cluster is created observe-only", "observed", **{OBSERVE_ONLY: "x"}),
    _core("a Cluster API Cluster becomes observe-only", "observed-2", _MARK),
    _core("a Cluster API Cluster is resumed", "observed-3", _NO_MARK, **{OBSERVE_ONLY: "x"}),
)
"""Clusters that the manager only observes. It would not even end rights in them."""


_RECORDED: Object = {"specHistory": ["1"], "etcdSnapshotRestore": {"generation": 1, "name": "a"}}


def _plane(id_: str, name: str, patch: Object | None = None, subresource: str = "", **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    fields = {"spec": {"clusterName": "", "managementClusterName": ""}}  # no references: they need more rights
    return Case(id_, CONTROL_PLANE, meta, fields, patch, subresource, status=_RECORDED if patch else None)


def _snapshot(id_: str, name: str, patch: Object | None = None, **annotations: str) -> Case:
    meta = {"name": name, "namespace": "fleet-default", "annotations": annotations}
    return Case(id_, ETCD_SNAPSHOT, meta, {"spec": {"clusterName": "other"}, "snapshotFile": {"name": "a"}}, patch)


def _annotated(name: str, value: str | None) -> Object:
    return {"metadata": {"annotations": {name: value}}}


def _identified(id_: str, name: str, patch: Object) -> Case:
    meta = {"name": name, "namespace": "fleet-default"}
    status = {"clusterName": "c-m-identified", "ready": False}
    return Case(id_, PROVISIONING_CLUSTER, meta, {"spec": {}}, patch, "status", status=status)


IDENTIFIED = (
    _identified("another management Cluster", "identified", {"status": {"clusterName": "c-m-another"}}),
    _identified("no management Cluster", "identified-2", {"status": {"clusterName": None}}),
)
"""Administrators resume, and log in to, the management Cluster that a provisioning Cluster names."""
REPORTED = _identified("another field of the status", "identified-3", {"status": {"ready": True}})

RESTORED = (
    _plane("a control plane is created with a spec of its cluster", "restored", **{names.CLUSTER_SPEC: "x"}),
    _plane("the spec of a cluster is replaced", "restored-2", _annotated(names.CLUSTER_SPEC, "x")),
    _plane(
        "the spec of a cluster is removed",
        "restored-3",
        _annotated(names.CLUSTER_SPEC, None),
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane("the spec before the last version is replaced", "restored-4", _annotated(names.PREVIOUS_SPEC, "x")),
    _plane("a digest is recorded", "restored-5", {"status": {"specHistory": ["1", "2"]}}, "status"),
    _plane("the digests are deleted", "restored-6", {"status": {"specHistory": None}}, "status"),
    _plane(
        "a generated control plane requests a restore",
        "restored-11",
        {"spec": {"etcdSnapshotRestore": {"generation": 1, "name": "a"}}},
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane(
        "an operation of a generated control plane is aborted",
        "restored-12",
        _annotated(names.ABORT_OPERATION, "x"),
        **{names.CLUSTER_SPEC: "x"},
    ),
    _plane("an object is approved", "restored-7", {"status": {"approvedObjects": ["1"]}}, "status"),
    _plane("an operation is in progress", "restored-8", {"status": {"operation": {"id": "a"}}}, "status"),
    _plane("an operation was not carried out", "restored-9", {"status": {"etcdSnapshotRestore": None}}, "status"),
    _plane("an upgrade has a snapshot", "restored-10", {"status": {"rollback": {"snapshot": "a"}}}, "status"),
    _snapshot("a snapshot is created", "restored"),
    _snapshot("a snapshot is of another cluster", "restored-2", {"spec": {"clusterName": "another"}}),
    _snapshot("a snapshot is another file", "restored-3", {"snapshotFile": {"name": "b"}}),
    _snapshot("a snapshot has another owner", "restored-5", {"metadata": {"ownerReferences": [_OWNER]}}),
    _snapshot("a snapshot has another hash", "restored-4", _annotated(names.SNAPSHOT_SHA256, "x")),
    _snapshot("a snapshot has other CAs", "restored-6", _annotated(names.SNAPSHOT_AUTHORITIES, "x")),
)
"""Writes that decide which spec an administrator restores, or which file the manager deletes or restores."""
LISTED = (
    _plane("an annotation of a control plane", "listed", _annotated("a", "b")),
    _plane("a control plane", "listed-2"),
    _plane("a control plane that is not generated", "listed-4", {"spec": {"unmanagedConfig": True}}),
    _plane("the status of a control plane", "listed-3", {"status": {"ready": True}}, "status"),
    _snapshot("a label of a snapshot", "listed", {"metadata": {"labels": {"a": "b"}}}),
)


def _role(id_: str, name: str, patch: Object | None = None, rules: list[Object] | None = None, **meta: Any) -> Case:
    named = {"name": name} if name else {}
    return Case(id_, ROLE, {**named, "namespace": "fleet-default", **meta}, {"rules": rules or []}, patch)


_READER = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
GRANTED_ROLES = (
    _role("a role of cluster owners", "c-m-roles123-clusterowner"),
    _role("a role of cluster members", "c-m-roles123-clustermember"),
    _role("a global role", "cattle-globalrole-roles"),
    _role("a generated name of a global role", "", generateName="cattle-globalrole-"),
    _role("a role of cluster owners is emptied", "c-m-roles456-clusterowner", {"rules": []}, _READER),
)
"""Roles that the manager fills. A user who may bind an empty one would gain the rights that the manager adds to it."""
MACHINE_ROLES = (
    _role("a role of a machine's plan", "roles-machine-plan"),
    _role("a role of a machine's Job", "roles-machine-provision"),
    _role("a role of the creator of a cloud credential", "roles-aws-cloud-credential"),
    _role("a role of readers of registration tokens", "crt-token-reader"),
    _role(
        "a role of a machine with a long name is emptied",
        "a-name-that-is-cut-and-distinguished-by-a-hash-12345",
        {"rules": []},
        _READER,
        ownerReferences=[_CONTROLLER],
    ),
    _role("a role of a machine's plan is emptied", "roles-2-machine-plan", {"rules": []}, _READER),
)
"""The same for Roles that let machines and their Jobs read Secrets."""
OWN_ROLES = (
    _role("a role", "readers"),
    _role("a role is emptied", "readers-2", {"rules": []}, _READER),
    _role("a label of a role", "c-m-roles789-clusterowner", {"metadata": {"labels": {"a": "b"}}}),
)


_POD = {"metadata": {"labels": {"app": "core"}}, "spec": {"containers": [{"name": "core", "image": "core"}]}}
_CORE = {PROVIDER: "cluster-api"}


def _deployment(id_: str, name: str, labels: Object, patch: Object | None = None, replicas: int = 1) -> Case:
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "core"}}, "template": _POD}
    return Case(id_, DEPLOYMENT, {"name": name, "namespace": "fleet-default", "labels": labels}, {"spec": spec}, patch)


def _lease(id_: str, name: str, patch: Object | None = None) -> Case:
    return Case(id_, LEASE, {"name": name, "namespace": "fleet-default"}, {"spec": {"holderIdentity": "core"}}, patch)


SIGNS_OF_A_CORE = (
    _lease("the Lease of a core", LEASE_NAME),
    _lease("the Lease of a core is renewed", LEASE_NAME, {"spec": {"holderIdentity": "another"}}),
    _deployment("the Deployment of a core", "core", _CORE),
    _deployment("a Deployment is labeled", "core-2", {}, {"metadata": {"labels": _CORE}}),
    Case(
        "a core in the inventory of clusterctl",
        PROVIDERS,
        {"name": "cluster-api", "namespace": "fleet-default"},
        {"type": CORE_PROVIDER, "providerName": "cluster-api"},
    ),
    _deployment("the Deployment of a core is scaled up", "core-3", _CORE, {"spec": {"replicas": 1}}, replicas=0),
)
"""Objects that disable the built-in Cluster API core for all users, because another core seems to be installed."""
OTHER_WORKLOADS = (
    _lease("a Lease", "tenancy-leader"),
    _deployment("a Deployment", "tenancy-deployment", {"app": "web"}),
    _deployment("a Deployment of a core is annotated", "core-4", _CORE, {"metadata": {"annotations": {"a": "b"}}}),
)


async def grant_rights(client: Client) -> None:
    await client.apply(CLUSTER_ROLE.resource, cluster_role(WRITER_ROLE, RULES))
    await client.apply(CLUSTER_ROLE_BINDING.resource, cluster_role_binding(WRITER_ROLE, WRITER_ROLE, _user(USER)))
    await client.apply(CLUSTER_ROLE.resource, cluster_role(EDITOR_ROLE, EDITOR_RULES))
    for number, name in enumerate(EDITORS):
        binding = cluster_role_binding(f"{EDITOR_ROLE}-{number}", EDITOR_ROLE, _user(name))
        await client.apply(CLUSTER_ROLE_BINDING.resource, binding)


def _user(name: str) -> Object:
    return {"apiGroup": RBAC, "kind": "User", "name": name}


async def revoke_rights(client: Client) -> None:
    bindings = (WRITER_ROLE, *(f"{EDITOR_ROLE}-{number}" for number, _ in enumerate(EDITORS)))
    for kind, names_ in ((CLUSTER_ROLE_BINDING, bindings), (CLUSTER_ROLE, (WRITER_ROLE, EDITOR_ROLE))):
        for name in names_:
            await client.delete(kind.resource, name)


async def create_for(client: Client, case: Case) -> None:
    """Create the object that the user of the case patches or deletes."""
    name, namespace = case.meta["name"], case.meta.get("namespace", "")
    with suppress(AlreadyExists):
        await client.create(case.kind.resource, case.object, namespace=namespace)
    if case.status is not None:
        status = {"status": case.status}
        await client.patch(case.kind.resource, name, status, namespace=namespace, subresource="status")
