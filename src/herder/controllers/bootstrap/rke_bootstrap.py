"""RKEBootstrap reconciler: bootstrap data (install script) and the machine's identity.

The script contains a token, so an effect renders it: no decision and no log ever contains one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from herder.api import settings
from herder.api.capi.conditions import condition, find
from herder.api.capi.contract import refers_to
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, is_paused, labels_of
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.jobs import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.management.commands import ca_checksum
from herder.api.management.display import one_line
from herder.api.rke import names
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, GROUP
from herder.api.rke.node.install import BadVariable, agent_variables
from herder.api.settings import SETTING
from herder.api.writes import delete, ref, status_patch
from herder.controllers.bootstrap import objects
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    Apply,
    Create,
    Decision,
    Effect,
    Parallel,
    Patch,
    Ref,
    Write,
    Writes,
    waiting,
)
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

ACCOUNT_METADATA = SERVICE_ACCOUNT.metadata_only()
BY_CLUSTER, ALL = "cluster", "all-bootstraps"
READY = "Ready"
TERMINAL_PHASES = ("Deleting", "Deleted", "Failed")  # phases in which a Machine no longer runs its script
# providers whose machines take a script; others take cloud-config
OWN_INFRASTRUCTURE = (MACHINE_GROUP, GROUP, "elemental.cattle.io")
_OWNED_ANNOTATIONS = (*objects.NODE_ANNOTATIONS, *objects.GRANTING_ANNOTATIONS)
_SETTINGS = {
    settings.SERVER_URL,
    settings.SERVER_CERTIFICATES,
    settings.AGENT_TLS_MODE,
    settings.NODE_AGENT_VERSION,
}


def reconcile(view: View) -> Decision:
    bootstrap = view.get(BOOTSTRAP, view.name)
    if bootstrap is None or is_deleting(bootstrap):
        return DONE  # Its objects are garbage collected.
    machine = _owner_machine(view, bootstrap)
    if machine is None:
        return waiting("waiting for the Machine controller to set the owner reference")
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"])
    if cluster is None:
        return waiting(f"Cluster {machine['spec']['clusterName']} does not exist")
    if is_paused(cluster, bootstrap):
        return waiting("reconciliation is paused", ref(CLUSTER, cluster))
    if not ((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    if is_deleting(machine):
        # The plan stays until both objects are deleted.
        return Decision(writes=_delete_bootstrap_data(view, bootstrap))
    if conflict := _name_conflict(view, bootstrap):
        return _blocked(view, bootstrap, conflict, ref(BOOTSTRAP, bootstrap))
    prepared = Decision(writes=(*_etcd_hook(machine), *_plan(view, bootstrap, machine, cluster)))
    if (machine.get("status") or {}).get("phase") in TERMINAL_PHASES:
        return prepared + Decision(writes=_delete_bootstrap_data(view, bootstrap))
    return prepared + _script(view, bootstrap, machine, cluster)


def _owner_machine(view: View, bootstrap: Object) -> Object | None:
    for reference in bootstrap["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == MACHINE.group_kind:
            found = view.get(MACHINE, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"] and _references(found, bootstrap):
                return found
    return None


def _name_conflict(view: View, bootstrap: Object) -> str:
    """Message about an object with a name that we need but another owner.

    Its author may read it, so neither plan nor token may be stored there.
    """
    plan, first = names.plan_secret(view.name), names.bootstrap_secret(view.name)
    secrets = (plan, first, names.account_token(plan), names.account_token(first))
    wanted = [(SECRET_METADATA, name) for name in secrets] + [(ACCOUNT_METADATA, name) for name in (plan, first)]
    # A Role that was bound while still empty would grant the plan to others.
    wanted += [(kind, names.plan_role(view.name)) for kind in (ROLE, ROLE_BINDING)]
    for kind, name in wanted:
        existing = view.get(kind, name)
        owners = (existing["metadata"].get("ownerReferences") or ()) if existing else ()
        if existing is not None and not any(each["uid"] == bootstrap["metadata"]["uid"] for each in owners):
            return f"{kind.kind} {view.namespace}/{name} has another owner; delete it"
    return ""


def _references(machine: Object, bootstrap: Object) -> bool:
    """Whether the Machine references this object: an owner reference alone is no proof, as its author writes it."""
    reference = (machine["spec"].get("bootstrap") or {}).get("configRef")
    return refers_to(reference, BOOTSTRAP, bootstrap["metadata"]["name"])


def _etcd_hook(machine: Object) -> Iterable[Write]:
    """Pre-terminate hook of an etcd machine; the planner removes it once the member has left."""
    is_etcd = labels_of(machine).get(names.ETCD_ROLE) == "true"
    if is_etcd and names.ETCD_HOOK not in annotations_of(machine):
        hook = {"metadata": {"annotations": {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}}}
        yield Patch(ref(MACHINE, machine), hook, "keep the Machine until its etcd member is removed")


# --- plan -----------------------------------------------------------------------------------------------------------


def _plan(view: View, bootstrap: Object, machine: Object, cluster: Object) -> Writes:
    account = objects.plan_account(bootstrap, machine)
    writes = (
        *_missing(view, SERVICE_ACCOUNT, account, "service account for the plan"),
        *_missing(view, SECRET, objects.token_secret(bootstrap, machine, account), "token of the service account"),
        *_plan_secret(view, bootstrap, machine, cluster),
        *_ensure_rbac(view, ROLE, objects.plan_role(bootstrap), "rules"),
        *_ensure_rbac(view, ROLE_BINDING, objects.plan_binding(bootstrap), "subjects"),
        *_former_rbac(view, bootstrap),
    )
    return (Parallel(writes),) if writes else ()


def _missing(view: View, kind: Kind, wanted: Object, reason: str) -> tuple[Write, ...]:
    existing = view.get(kind.metadata_only(), wanted["metadata"]["name"])
    return () if existing is not None else (Create(kind, wanted, reason),)


def _plan_secret(view: View, bootstrap: Object, machine: Object, cluster: Object) -> tuple[Write, ...]:
    """Keep our labels and annotations up to date, and leave those of others."""
    wanted = objects.plan_secret(bootstrap, machine, cluster)
    existing = view.get(SECRET_METADATA, wanted["metadata"]["name"])
    if existing is None:
        new = objects.new_plan_secret(bootstrap, machine, cluster)
        return (Create(SECRET, new, "plan Secret of the machine"),)
    meta = wanted["metadata"]
    changes: Object = {
        "labels": _changes(labels_of(existing), meta["labels"]),
        "annotations": _changes(annotations_of(existing), meta["annotations"], owned=_OWNED_ANNOTATIONS),
    }
    changes = {part: values for part, values in changes.items() if values}
    return (
        (Patch(ref(SECRET, existing), {"metadata": changes}, "sync labels and annotations of the RKEBootstrap"),)
        if changes
        else ()
    )


def _changes(known: Mapping[str, str], wanted: Mapping[str, str], owned: Iterable[str] = ()) -> Object:
    """Changes of labels or annotations; `owned` names are removed if they are no longer wanted."""
    removed: Object = {name: None for name in owned if name in known and name not in wanted}
    return removed | {name: value for name, value in wanted.items() if known.get(name) != value}


def _ensure_rbac(view: View, kind: Kind, wanted: Object, part: str) -> tuple[Write, ...]:
    existing = view.get(kind, wanted["metadata"]["name"])
    if existing is not None and existing.get(part) == wanted[part]:
        return ()
    return (Apply(kind, wanted, "grant access to the plan of this machine only"),)


def _former_rbac(view: View, bootstrap: Object) -> Iterable[Write]:
    """Delete the Role and RoleBinding of a long name, which earlier versions truncated: users can bind such a Role."""
    former = names.plan_secret(view.name)
    for kind in (ROLE_BINDING, ROLE):
        found = view.get(kind, former) if former != names.plan_role(view.name) else None
        owners = (found or {"metadata": {}})["metadata"].get("ownerReferences") or ()
        if found is not None and any(each["uid"] == bootstrap["metadata"]["uid"] for each in owners):
            yield delete(kind, found, "its name is not reserved for the manager")


# --- bootstrap data -------------------------------------------------------------------------------------------------


def _script(view: View, bootstrap: Object, machine: Object, cluster: Object) -> Decision:
    control_plane = _control_plane(view, cluster)
    if control_plane is None:
        return waiting("the Cluster has no RKEControlPlane yet", ref(CLUSTER, cluster))
    if _is_reported(view, bootstrap) and (machine.get("status") or {}).get("nodeRef"):
        return DONE  # The machine has run the script.
    if not view.setting(settings.SERVER_URL):
        return _blocked(view, bootstrap, "setting server-url: not set; machines need it to register")
    try:
        arguments = _arguments(view, bootstrap, machine, cluster, control_plane)
    except BadVariable as problem:
        return _blocked(view, bootstrap, f"spec.{problem}", ref(CONTROL_PLANE, control_plane))
    if arguments["windows"] and arguments["userdata"] is not None:
        problem_message = "Windows is not supported on infrastructure of other providers"
        return _blocked(view, bootstrap, problem_message, ref(MACHINE, machine))
    return _ensure_script(view, bootstrap, machine, arguments)


def _control_plane(view: View, cluster: Object) -> Object | None:
    reference = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
    ours = (reference.get("apiGroup"), reference.get("kind")) == CONTROL_PLANE.group_kind
    return view.get(CONTROL_PLANE, reference["name"]) if ours else None


def _arguments(view: View, bootstrap: Object, machine: Object, cluster: Object, control_plane: Object) -> Object:
    """All inputs of the script; an existing script is up to date if it has their digest."""
    spec = control_plane.get("spec") or {}
    infrastructure = (machine["spec"].get("infrastructureRef") or {}).get("apiGroup")
    userdata = ((bootstrap.get("spec") or {}).get("userdata") or {}).get("inlineUserdata") or ""
    status: Object = {
        "server": view.setting(settings.SERVER_URL),
        "checksum": ca_checksum(view.setting(settings.SERVER_CERTIFICATES)),
        "tls": view.setting(settings.AGENT_TLS_MODE),
        "version": view.setting(settings.NODE_AGENT_VERSION),
        "variables": agent_variables(spec),
        "windows": labels_of(machine).get(names.OPERATING_SYSTEM) == names.WINDOWS,
        "userdata": None if infrastructure in OWN_INFRASTRUCTURE else userdata,
    }
    digest = hashlib.sha256(json.dumps(status, sort_keys=True).encode()).hexdigest()[:32]
    return {**status, "metadata": objects.bootstrap_secret_meta(bootstrap, cluster, digest)}


def _ensure_script(view: View, bootstrap: Object, machine: Object, arguments: Object) -> Decision:
    """Create the account, then its token Secret, which Kubernetes fills, then the script with the token."""
    wanted = objects.bootstrap_account(bootstrap, machine)
    token = objects.token_secret(bootstrap, machine, wanted)
    writes = (
        *_missing(view, SERVICE_ACCOUNT, wanted, "service account for the bootstrap token"),
        *_missing(view, SECRET, token, "bootstrap token of the machine"),
    )
    if writes:
        return Decision(writes=(Parallel(writes),))
    existing = view.get(SECRET_METADATA, token["metadata"]["name"])
    if existing is None or objects.TOKEN_OF_UID not in annotations_of(existing):
        return waiting("waiting for the token of its service account", ref(SECRET, token))
    secret = view.get(SECRET_METADATA, names.bootstrap_secret(view.name))
    digest = annotations_of(arguments)[names.RENDERED_FROM]
    if secret is not None and annotations_of(secret).get(names.RENDERED_FROM) == digest:
        return _report_status(view, bootstrap)
    effect = _render(bootstrap, existing, secret, arguments, digest)
    result = view.result(effect.key)
    failed = waiting(result.error) if result is not None and result.error else DONE
    return Decision(effects=(effect,)) + failed


def _render(bootstrap: Object, token: Object, secret: Object | None, arguments: Object, digest: str) -> Effect:
    key = (names.MAKE_BOOTSTRAP_DATA, bootstrap["metadata"]["uid"], token["metadata"]["uid"], digest)
    existing = secret["metadata"]["resourceVersion"] if secret else ""
    all_arguments = {**arguments, "token": token["metadata"]["name"]}
    return Effect(names.MAKE_BOOTSTRAP_DATA, (*key, existing), all_arguments, "render the bootstrap data", repeat=True)


def _is_reported(view: View, bootstrap: Object) -> bool:
    created = ((bootstrap.get("status") or {}).get("initialization") or {}).get("dataSecretCreated")
    return bool(created) and view.get(SECRET_METADATA, names.bootstrap_secret(view.name)) is not None


def _blocked(view: View, bootstrap: Object, problem: str, *objects: Ref) -> Decision:
    """Report a problem that a user must fix. Cluster API copies the condition to the Machine."""
    status = bootstrap.get("status") or {}
    conditions = [condition(READY, "False", "NotPrepared", one_line(problem))]
    wanted = {**status, "conditions": merged_with_updates(status.get("conditions"), conditions, view.now)}
    return Decision(writes=status_patch(BOOTSTRAP, bootstrap, wanted, "a user must act")) + waiting(problem, *objects)


def _report_status(view: View, bootstrap: Object) -> Decision:
    status = bootstrap.get("status") or {}
    fixed = [condition(READY, "True", "DataSecretCreated")] if find(bootstrap, READY) else []
    wanted = {
        **status,
        **({"conditions": merged_with_updates(status["conditions"], fixed, view.now)} if fixed else {}),
        "dataSecretName": names.bootstrap_secret(bootstrap["metadata"]["name"]),
        "initialization": {**(status.get("initialization") or {}), "dataSecretCreated": True},
    }
    return Decision(writes=status_patch(BOOTSTRAP, bootstrap, wanted, "the bootstrap data is ready"))


def _delete_bootstrap_data(view: View, bootstrap: Object) -> Writes:
    """Delete account and script of a machine that is being deleted or was never created."""
    name = names.bootstrap_secret(bootstrap["metadata"]["name"])
    reason = "the machine no longer needs its bootstrap data"
    account, secret = view.get(ACCOUNT_METADATA, name), view.get(SECRET_METADATA, name)
    return (
        *((delete(SERVICE_ACCOUNT, account, reason),) if account else ()),
        *((delete(SECRET, secret, reason),) if secret else ()),
    )


# --- watches --------------------------------------------------------------------------------------------------------


def _of_machine(machine: Object) -> Iterable[Key]:
    reference = ((machine.get("spec") or {}).get("bootstrap") or {}).get("configRef") or {}
    if (reference.get("apiGroup"), reference.get("kind")) == BOOTSTRAP.group_kind:
        yield Key(machine["metadata"]["namespace"], reference["name"])


def _cluster_of(bootstrap: Object) -> Iterable[str]:
    name = labels_of(bootstrap).get(CLUSTER_NAME)
    return (cluster_key(bootstrap["metadata"]["namespace"], name),) if name else ()


def _own_name(cluster: Object) -> Iterable[str]:
    return (cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"]),)


def _named_cluster(control_plane: Object) -> Iterable[str]:
    name = (control_plane.get("spec") or {}).get("clusterName")
    return (cluster_key(control_plane["metadata"]["namespace"], name),) if name else ()


def _all_key(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _SETTINGS else ()


CONTROLLER = Controller(
    name="rke-bootstrap",
    kind=BOOTSTRAP,
    reconcile=reconcile,
    watches=(
        Watches(
            MACHINE,
            _of_machine,
            changed("metadata.labels", "metadata.annotations", "metadata.deletionTimestamp", "status.phase"),
        ),
        Watches(CLUSTER, Indexed(BY_CLUSTER, _own_name), changed("spec", "status.initialization")),
        Watches(
            CONTROL_PLANE, Indexed(BY_CLUSTER, _named_cluster), changed("spec.agentEnvVars", "spec.dataDirectories")
        ),
        Watches(SECRET_METADATA, owner(BOOTSTRAP), changed("metadata.labels", "metadata.annotations")),
        Watches(ACCOUNT_METADATA, owner(BOOTSTRAP), changed()),
        Watches(ROLE, owner(BOOTSTRAP), changed("rules")),
        Watches(ROLE_BINDING, owner(BOOTSTRAP), changed("subjects")),
        Watches(SETTING, Indexed(ALL, _all_key), changed("value")),
    ),
    predicate=changed("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "spec", "status"),
    indexes={BOOTSTRAP: {BY_CLUSTER: _cluster_of, ALL: lambda _bootstrap: (ALL,)}},
    cluster_of=lambda bootstrap: next(iter(_cluster_of(bootstrap)), ""),
)
