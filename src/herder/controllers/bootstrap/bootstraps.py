"""An RKEBootstrap is what a machine of ours runs first: the install script, and who the machine then is to us.

The script holds a token, so it is rendered by an effect: nothing that decides, or is logged of it, ever holds one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from herder.api import settings
from herder.api.capi.contract import reference_group
from herder.api.capi.kinds import CLUSTER, MACHINE, SECRET, SECRET_METADATA
from herder.api.capi.names import CLUSTER_NAME, annotations_of, cluster_key, is_deleting, is_paused, labels_of
from herder.api.machines.jobs import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.management.commands import ca_checksum
from herder.api.rke import names
from herder.api.rke.install import BadVariable, agent_variables
from herder.api.rke.kinds import BOOTSTRAP, CONTROL_PLANE, GROUP
from herder.api.settings import SETTING
from herder.api.writing import delete, ref, status_patch
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
    Write,
    Writes,
    waiting,
)
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

ACCOUNT_METADATA = SERVICE_ACCOUNT.metadata_only()
BY_CLUSTER, ALL = "cluster", "all-bootstraps"
GOING = ("Deleting", "Deleted", "Failed")  # phases of a Machine that will not run its script any more
OWN_INFRASTRUCTURE = (MACHINE_GROUP, GROUP, "elemental.cattle.io")  # whose machines take a script; others cloud-config
_SETTINGS = {
    settings.SERVER_URL,
    settings.SERVER_CERTIFICATES,
    settings.AGENT_TLS_MODE,
    settings.NODE_AGENT_VERSION,
}


def reconcile(view: View) -> Decision:
    bootstrap = view.get(BOOTSTRAP, view.name)
    if bootstrap is None or is_deleting(bootstrap):
        return DONE  # all that was made for it goes with it
    machine = _owner_machine(view, bootstrap)
    if machine is None:
        return waiting("the core has yet to make it a Machine's")
    cluster = view.get(CLUSTER, machine["spec"]["clusterName"])
    if cluster is None:
        return waiting(f"Cluster {machine['spec']['clusterName']} does not exist")
    if is_paused(cluster, bootstrap):
        return waiting("it is paused", ref(CLUSTER, cluster))
    if not ((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned"):
        return waiting("the cluster's infrastructure is not provisioned", ref(CLUSTER, cluster))
    if is_deleting(machine):
        return Decision(writes=_withdraw(view, bootstrap))  # the plan stays as it is until both are gone
    if foreign := _foreign(view, bootstrap):
        return waiting(foreign, ref(BOOTSTRAP, bootstrap))
    prepared = Decision(writes=(*_hold(machine), *_plan(view, bootstrap, machine, cluster)))
    if (machine.get("status") or {}).get("phase") in GOING:
        return prepared + Decision(writes=_withdraw(view, bootstrap))
    return prepared + _script(view, bootstrap, machine, cluster)


def _owner_machine(view: View, bootstrap: Object) -> Object | None:
    for reference in bootstrap["metadata"].get("ownerReferences") or ():
        if (reference["apiVersion"].rpartition("/")[0], reference["kind"]) == MACHINE.group_kind:
            found = view.get(MACHINE, reference["name"])
            if found is not None and found["metadata"]["uid"] == reference["uid"] and _names(found, bootstrap):
                return found
    return None


def _foreign(view: View, bootstrap: Object) -> str:
    """An object under a name of ours that is not the RKEBootstrap's. Its author may read it, so no plan and no token of
    the machine goes there."""
    plan, first = names.plan_secret(view.name), names.bootstrap_secret(view.name)
    secrets = (plan, first, names.account_token(plan), names.account_token(first))
    wanted = [(SECRET_METADATA, name) for name in secrets] + [(ACCOUNT_METADATA, name) for name in (plan, first)]
    wanted += [(ROLE, plan), (ROLE_BINDING, plan)]  # bound before it is filled, a Role grants the plan to others
    for kind, name in wanted:
        there = view.get(kind, name)
        owners = (there["metadata"].get("ownerReferences") or ()) if there else ()
        if there is not None and not any(each["uid"] == bootstrap["metadata"]["uid"] for each in owners):
            return f"{kind.kind} {view.namespace}/{name} belongs to someone else; delete it"
    return ""


def _names(machine: Object, bootstrap: Object) -> bool:
    """An owner reference proves nothing, since whoever writes the object writes it: the Machine must name it too."""
    reference = (machine["spec"].get("bootstrap") or {}).get("configRef") or {}
    own = (*BOOTSTRAP.group_kind, bootstrap["metadata"]["name"])
    return (reference_group(reference), reference.get("kind"), reference.get("name")) == own


def _hold(machine: Object) -> Iterable[Write]:
    """A machine with etcd does not go before its member is out; the planner lets it go."""
    is_etcd = labels_of(machine).get(names.ETCD_ROLE) == "true"
    if is_etcd and names.ETCD_HOOK not in annotations_of(machine):
        hook = {"metadata": {"annotations": {names.ETCD_HOOK: names.ETCD_HOOK_OWNER}}}
        yield Patch(ref(MACHINE, machine), hook, "its etcd member must be out before it goes")


# --- the plan -------------------------------------------------------------------------------------------------------


def _plan(view: View, bootstrap: Object, machine: Object, cluster: Object) -> Writes:
    account = objects.plan_account(bootstrap, machine)
    made = (
        *_missing(view, SERVICE_ACCOUNT, account, "as whom the machine asks for its plan"),
        *_missing(view, SECRET, objects.token_secret(bootstrap, machine, account), "its token"),
        *_plan_secret(view, bootstrap, machine, cluster),
        *_right(view, ROLE, objects.plan_role(bootstrap), "rules"),
        *_right(view, ROLE_BINDING, objects.plan_binding(bootstrap), "subjects"),
    )
    return (Parallel(made),) if made else ()


def _missing(view: View, kind: Kind, wanted: Object, reason: str) -> tuple[Write, ...]:
    there = view.get(kind.metadata_only(), wanted["metadata"]["name"])
    return () if there is not None else (Create(kind, wanted, reason),)


def _plan_secret(view: View, bootstrap: Object, machine: Object, cluster: Object) -> tuple[Write, ...]:
    """Others write labels and annotations there too: ours are added and kept up to date, and theirs are left alone."""
    wanted = objects.plan_secret(bootstrap, machine, cluster)
    there = view.get(SECRET_METADATA, wanted["metadata"]["name"])
    if there is None:
        new = objects.new_plan_secret(bootstrap, machine, cluster)
        return (Create(SECRET, new, "where the planner leaves the machine's plan"),)
    meta = wanted["metadata"]
    changes: Object = {
        "labels": _news(labels_of(there), meta["labels"]),
        "annotations": _news(annotations_of(there), meta["annotations"], gone=objects.ABOUT_THE_NODE),
    }
    changes = {part: values for part, values in changes.items() if values}
    return (Patch(ref(SECRET, there), {"metadata": changes}, "as its RKEBootstrap is"),) if changes else ()


def _news(known: Mapping[str, str], wanted: Mapping[str, str], gone: Iterable[str] = ()) -> Object:
    """`gone`: names that are nobody else's, so what is not wanted any more goes."""
    removed: Object = {name: None for name in gone if name in known and name not in wanted}
    return removed | {name: value for name, value in wanted.items() if known.get(name) != value}


def _right(view: View, kind: Kind, wanted: Object, part: str) -> tuple[Write, ...]:
    there = view.get(kind, wanted["metadata"]["name"])
    if there is not None and there.get(part) == wanted[part]:
        return ()
    return (Apply(kind, wanted, "the machine may use its own plan, and nothing else"),)


# --- what it runs first ---------------------------------------------------------------------------------------------


def _script(view: View, bootstrap: Object, machine: Object, cluster: Object) -> Decision:
    control_plane = _control_plane(view, cluster)
    if control_plane is None:
        return waiting("the Cluster has no RKEControlPlane yet", ref(CLUSTER, cluster))
    if _is_reported(view, bootstrap) and (machine.get("status") or {}).get("nodeRef"):
        return DONE  # it has run the script
    if not view.setting(settings.SERVER_URL):
        return waiting("setting server-url: not set, so no machine could be told where to ask")
    try:
        arguments = _arguments(view, bootstrap, machine, cluster, control_plane)
    except BadVariable as problem:
        return waiting(f"spec.{problem}", ref(CONTROL_PLANE, control_plane))
    if arguments["windows"] and arguments["userdata"] is not None:
        return waiting("Windows is not supported on infrastructure of other providers", ref(MACHINE, machine))
    return _rendered(view, bootstrap, machine, arguments)


def _control_plane(view: View, cluster: Object) -> Object | None:
    reference = (cluster.get("spec") or {}).get("controlPlaneRef") or {}
    ours = (reference.get("apiGroup"), reference.get("kind")) == CONTROL_PLANE.group_kind
    return view.get(CONTROL_PLANE, reference["name"]) if ours else None


def _arguments(view: View, bootstrap: Object, machine: Object, cluster: Object, control_plane: Object) -> Object:
    """All that the script depends on. Its digest tells whether one that is there is still the right one."""
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


def _rendered(view: View, bootstrap: Object, machine: Object, arguments: Object) -> Decision:
    """The account first, then its token, which Kubernetes makes; then the script that the token is in."""
    wanted = objects.bootstrap_account(bootstrap, machine)
    token = objects.token_secret(bootstrap, machine, wanted)
    made = (
        *_missing(view, SERVICE_ACCOUNT, wanted, "as whom the machine asks who it is"),
        *_missing(view, SECRET, token, "what it proves that with"),
    )
    if made:
        return Decision(writes=(Parallel(made),))
    there = view.get(SECRET_METADATA, token["metadata"]["name"])
    if there is None or objects.TOKEN_OF_UID not in annotations_of(there):
        return waiting("its account has no token yet", ref(SECRET, token))
    secret = view.get(SECRET_METADATA, names.bootstrap_secret(view.name))
    digest = annotations_of(arguments)[names.RENDERED_FROM]
    if secret is not None and annotations_of(secret).get(names.RENDERED_FROM) == digest:
        return _report_status(bootstrap)
    effect = _render(bootstrap, there, secret, arguments, digest)
    result = view.result(effect.key)
    failed = waiting(result.error) if result is not None and result.error else DONE
    return Decision(effects=(effect,)) + failed


def _render(bootstrap: Object, token: Object, secret: Object | None, arguments: Object, digest: str) -> Effect:
    key = (names.MAKE_BOOTSTRAP_DATA, bootstrap["metadata"]["uid"], token["metadata"]["uid"], digest)
    there = secret["metadata"]["resourceVersion"] if secret else ""
    all_arguments = {**arguments, "token": token["metadata"]["name"]}
    return Effect(names.MAKE_BOOTSTRAP_DATA, (*key, there), all_arguments, "what the machine runs first", repeat=True)


def _is_reported(view: View, bootstrap: Object) -> bool:
    created = ((bootstrap.get("status") or {}).get("initialization") or {}).get("dataSecretCreated")
    return bool(created) and view.get(SECRET_METADATA, names.bootstrap_secret(view.name)) is not None


def _report_status(bootstrap: Object) -> Decision:
    status = bootstrap.get("status") or {}
    wanted = {
        **status,
        "dataSecretName": names.bootstrap_secret(bootstrap["metadata"]["name"]),
        "initialization": {**(status.get("initialization") or {}), "dataSecretCreated": True},
    }
    return Decision(writes=status_patch(BOOTSTRAP, bootstrap, wanted, "the machine may be made"))


def _withdraw(view: View, bootstrap: Object) -> Writes:
    """A machine that goes, or was never made, asks no more who it is."""
    name = names.bootstrap_secret(bootstrap["metadata"]["name"])
    reason = "its machine will not run it any more"
    account, secret = view.get(ACCOUNT_METADATA, name), view.get(SECRET_METADATA, name)
    return (
        *((delete(SERVICE_ACCOUNT, account, reason),) if account else ()),
        *((delete(SECRET, secret, reason),) if secret else ()),
    )


# --- what sets it off -----------------------------------------------------------------------------------------------


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


def _everything(setting: Object) -> Iterable[str]:
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
        Watches(SETTING, Indexed(ALL, _everything), changed("value")),
    ),
    predicate=changed("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "spec", "status"),
    indexes={BOOTSTRAP: {BY_CLUSTER: _cluster_of, ALL: lambda _bootstrap: (ALL,)}},
    cluster_of=lambda bootstrap: next(iter(_cluster_of(bootstrap)), ""),
)
