"""Objects created for a machine before it boots: service accounts, token Secrets, plan Secret, and RBAC for it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET
from herder.api.capi.names import CLUSTER_NAME, UNINITIALIZED_TAINT, annotations_of, labels_of
from herder.api.identity.tenancy.secrets import ISSUED_LABELS, MANAGED_MARKS
from herder.api.machines.credentials import CREATOR
from herder.api.machines.jobs import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.machines.names import BACKUP_LABEL
from herder.api.management.secret_sync import SYNC, SYNC_BOOTSTRAP
from herder.api.references.approvals import APPROVED
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP
from herder.api.writes import owner_reference
from herder.engine.meta.kinds import Kind, Object

TOKEN_TYPE = "kubernetes.io/service-account-token"
TOKEN_OF = "kubernetes.io/service-account.name"
TOKEN_OF_UID = "kubernetes.io/service-account.uid"  # the token controller sets it together with the token

PLAN_VERBS = ["get", "list", "watch", "update"]

NODE_ANNOTATIONS = (names.LABELS, names.TAINTS, names.ADDRESS, names.INTERNAL_ADDRESS)
"""Annotations of a plan Secret that only its RKEBootstrap sets."""
GRANTING_ANNOTATIONS = (CREATOR, *MANAGED_MARKS, names.AUTHORIZED_CLUSTERS, SYNC, SYNC_BOOTSTRAP, APPROVED)
"""Annotations by which a Secret may be referenced or copied into a cluster. A plan Secret never has them."""
_PLAN_PROGRESS = (
    *(names.PLAN_TASK, names.PLAN_INPUTS, names.PLAN_ATTEMPTS, names.PLAN_FAILED, names.PLAN_UPDATED),
    *(names.PROBES_PASSED, names.PRE_DRAIN, names.POST_DRAIN, names.DRAIN_OPTIONS, names.DRAIN_DONE, names.DRAIN_ERROR),
    *(names.DRAIN_STARTED, names.UNCORDON),
)
PLANNER_ANNOTATIONS = (names.JOIN_URL, names.JOINED_TO, *_PLAN_PROGRESS)
"""Annotations of a plan Secret that only the planner sets.

Other machines send the cluster's token to the join URL. The task says which part of an operation the machine has done:
another value would keep the operation from ending, or have it continue without the machine.
"""


def _meta(bootstrap: Object, name: str, **rest: object) -> Object:
    owner = owner_reference(BOOTSTRAP, bootstrap, controller=True)
    return {"name": name, "namespace": bootstrap["metadata"]["namespace"], "ownerReferences": [owner], **rest}


def _object(kind: Kind, meta: Object, **rest: object) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **rest}


# --- accounts -------------------------------------------------------------------------------------------------------


def plan_account(bootstrap: Object, machine: Object) -> Object:
    name = names.plan_secret(bootstrap["metadata"]["name"])
    return _account(bootstrap, machine, name, names.ACCOUNT_FOR_PLAN, {names.PLAN_SECRET_NAME: name})


def bootstrap_account(bootstrap: Object, machine: Object) -> Object:
    """Service account without any rights: its token only proves the identity of the machine."""
    name = names.bootstrap_secret(bootstrap["metadata"]["name"])
    return _account(bootstrap, machine, name, names.ACCOUNT_FOR_BOOTSTRAP, {})


def _account(bootstrap: Object, machine: Object, name: str, role: str, more: Mapping[str, str]) -> Object:
    secret = f"{bootstrap['metadata']['namespace']}/{names.account_token(name)}"
    labels = {**_labels(bootstrap, machine, role), **more}
    meta = _meta(bootstrap, name, labels=labels, annotations={names.ACCOUNT_TOKEN: secret})
    return _object(SERVICE_ACCOUNT, meta)


def token_secret(bootstrap: Object, machine: Object, account: Object) -> Object:
    """Secret that Kubernetes fills with a token; controllers never read it."""
    name, role = account["metadata"]["name"], labels_of(account)[names.ACCOUNT_ROLE]
    labels = {**_labels(bootstrap, machine, role), names.ACCOUNT_NAME: name}
    annotations = {TOKEN_OF: name} | ({names.BOOTSTRAP_TOKEN: "true"} if role == names.ACCOUNT_FOR_BOOTSTRAP else {})
    return _object(
        SECRET, _meta(bootstrap, names.account_token(name), labels=labels, annotations=annotations), type=TOKEN_TYPE
    )


def _labels(bootstrap: Object, machine: Object, role: str) -> dict[str, str]:
    return {
        names.MACHINE_NAME: machine["metadata"]["name"],
        names.BOOTSTRAP_NAME: bootstrap["metadata"]["name"],
        names.ACCOUNT_ROLE: role,
    }


# --- plan -----------------------------------------------------------------------------------------------------------


def plan_secret(bootstrap: Object, machine: Object, cluster: Object) -> Object:
    """Empty plan Secret, which the planner fills; roles, addresses, labels and taints come from the RKEBootstrap."""
    meta = _meta(
        bootstrap,
        names.plan_secret(bootstrap["metadata"]["name"]),
        labels=_plan_labels(bootstrap, machine, cluster),
        annotations=_plan_annotations(bootstrap),
    )
    return _object(SECRET, meta, type=names.PLAN_SECRET_TYPE)


def _plan_annotations(bootstrap: Object) -> dict[str, str]:
    """Annotations of an RKEBootstrap include those that users give MachineDeployments, without rights on Secrets.

    Admission does not check the manager's writes: the creator of a Secret may reference it, and so read the plan.
    """
    reserved = (*GRANTING_ANNOTATIONS, *PLANNER_ANNOTATIONS)
    return {name: value for name, value in annotations_of(bootstrap).items() if name not in reserved}


def new_plan_secret(bootstrap: Object, machine: Object, cluster: Object) -> Object:
    """Plan Secret of a new machine.

    A worker registers with the uninitialized taint until Cluster API has synced its labels. The planner
    reads that from the annotation, which is set at once: adding it later would restart every node.
    """
    secret = plan_secret(bootstrap, machine, cluster)
    if labels_of(bootstrap).get(names.CONTROL_PLANE_ROLE) == "true":
        return secret
    taint = json.dumps([{"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"}], separators=(",", ":"))
    secret["metadata"]["annotations"][names.REGISTER_WITH] = taint
    return secret


def _plan_labels(bootstrap: Object, machine: Object, cluster: Object) -> dict[str, str]:
    """Labels of an RKEBootstrap include those that users give machine pools and machines.

    Labels by which the manager finds other Secrets are left out: as a registration request, the plan would expire.
    """
    return {
        **{name: value for name, value in labels_of(bootstrap).items() if name not in ISSUED_LABELS},
        names.MACHINE_NAME: machine["metadata"]["name"],
        names.CLUSTER_NAME: cluster["metadata"]["name"],
        BACKUP_LABEL: "true",
        names.PLAN_CLUSTER_GROUP: CLUSTER.group,
        names.PLAN_CLUSTER_KIND: CLUSTER.kind,
        names.PLAN_CLUSTER_NAME: cluster["metadata"]["name"],
        names.PLAN_MACHINE_GROUP: MACHINE.group,
        names.PLAN_MACHINE_KIND: MACHINE.kind,
        names.PLAN_MACHINE_NAME: machine["metadata"]["name"],
    }


def plan_role(bootstrap: Object) -> Object:
    """Access to the machine's own plan Secret only, without create and delete."""
    secret, name = (of(bootstrap["metadata"]["name"]) for of in (names.plan_secret, names.plan_role))
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [secret], "verbs": PLAN_VERBS}
    return _object(ROLE, _meta(bootstrap, name), rules=[rule])


def plan_binding(bootstrap: Object) -> Object:
    account, name = (of(bootstrap["metadata"]["name"]) for of in (names.plan_secret, names.plan_role))
    subject = {"kind": "ServiceAccount", "name": account, "namespace": bootstrap["metadata"]["namespace"]}
    role = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": name}
    return _object(ROLE_BINDING, _meta(bootstrap, name), subjects=[subject], roleRef=role)


# --- bootstrap data -------------------------------------------------------------------------------------------------


def bootstrap_secret_meta(bootstrap: Object, cluster: Object, digest: str) -> Object:
    """Metadata of the bootstrap data Secret; an effect creates it, because the script contains a token."""
    return _meta(
        bootstrap,
        names.bootstrap_secret(bootstrap["metadata"]["name"]),
        labels={CLUSTER_NAME: cluster["metadata"]["name"]},
        annotations={names.RENDERED_FROM: digest},
    )
