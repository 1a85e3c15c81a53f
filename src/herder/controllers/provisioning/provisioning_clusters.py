"""A provisioning Cluster, imported or built here, gets a management Cluster, and tells when that has been connected."""

from __future__ import annotations

import re
from collections.abc import Iterable

from herder.api import settings
from herder.api.capi.conditions import Condition, condition, find
from herder.api.capi.kinds import SECRET_METADATA
from herder.api.capi.names import annotations_of, is_deleting, kubeconfig_secret
from herder.api.identity.tenancy import is_cluster_name
from herder.api.machines.conditions import merged_with_updates
from herder.api.machines.jobs import ROLE_BINDING
from herder.api.management import clusters, names
from herder.api.management.commands import ca_checksum
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.settings import SETTING
from herder.api.writing import delete, object_patch, owner_reference, owners, ref, status_patch
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Create, Decision, Effect, Write, requesting, waiting
from herder.engine.runtime.handlers import Indexed, Watches, changed, owner
from herder.engine.runtime.view import View

BY_NAME, BY_OWNER, ALL = "named-management-cluster", "owner-uid", "all-provisioning-clusters"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def reconcile(view: View) -> Decision:
    provisioning = view.get(PROVISIONING_CLUSTER, view.name)
    if provisioning is None:
        return DONE
    if is_deleting(provisioning):
        return _remove(view, provisioning)
    if names.REMOVE_PROVISIONING not in (provisioning["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(provisioning, add=True))
    return _with_management(view, provisioning)


def _with_management(view: View, provisioning: Object) -> Decision:
    """The name is written down before anything is made of it: whoever goes on after a crash makes no second one."""
    name = _management_name(view, provisioning)
    if problem := _problem(view, provisioning, name):
        return _report_status(view, provisioning, None, "", problem)
    if (provisioning.get("status") or {}).get("clusterName") != name:
        return _report_status(view, provisioning, None, name)
    management = view.get(MANAGEMENT_CLUSTER, name)
    if management is None:
        made = clusters.management_of(provisioning, name)
        return Decision(writes=(Create(MANAGEMENT_CLUSTER, made, f"{view.key} is a managed cluster"),))
    kubeconfig, asks = _kubeconfig(view, provisioning, management)
    return (
        _lead(provisioning, management)
        + _report_status(view, provisioning, management, name, kubeconfig=kubeconfig)
        + asks
    )


def _lead(provisioning: Object, management: Object) -> Decision:
    """What is asked of a cluster that is built here is asked of its management Cluster too."""
    if not clusters.is_provisioned_here(provisioning):
        return DONE
    wanted = clusters.followed(management, provisioning)
    return Decision(writes=object_patch(MANAGEMENT_CLUSTER, management, wanted, "its provisioning Cluster has changed"))


def _management_name(view: View, provisioning: Object) -> str:
    known = (provisioning.get("status") or {}).get("clusterName")
    asked = annotations_of(provisioning).get(names.MANAGEMENT_NAME)
    return str(known or asked or f"c-m-{view.unique(provisioning['metadata']['uid'], 8)}")


def _problem(view: View, provisioning: Object, name: str) -> str:
    if not _NAME.fullmatch(name):
        return f'annotation {names.MANAGEMENT_NAME}: "{name}" is no name of lower-case letters, digits and dashes'
    management = view.get(MANAGEMENT_CLUSTER, name)
    meta = provisioning["metadata"]
    # Admission has checked the annotation, but does not see who writes the status.
    is_asked = name == annotations_of(provisioning).get(names.MANAGEMENT_NAME)
    if management is None and not is_asked and not is_cluster_name(name):
        return f"status.clusterName: {name} cannot be the name of a management Cluster; correct the status"
    if management is not None and not clusters.belongs(management, meta["namespace"], meta["name"]):
        return f"management Cluster {name} belongs to another cluster: choose another name in {names.MANAGEMENT_NAME}"
    return ""


# --- its kubeconfig -------------------------------------------------------------------------------------------------


def _kubeconfig(view: View, provisioning: Object, management: Object) -> tuple[str, Decision]:
    """The name of the Secret, once it is there. It holds a token, so it is made by an effect: no decision holds one."""
    server, _certificates = settings.internal_address(view.setting)
    if not server or not _has_been_ready(provisioning, management):
        return "", DONE
    secret = view.get(SECRET_METADATA, kubeconfig_secret(view.name))
    effect = _make_kubeconfig(view, provisioning, management, secret)
    result = view.result(effect.key)
    if result is not None and result.done and secret is not None:
        return kubeconfig_secret(view.name), DONE
    asks = requesting(effect, result, "waiting for the kubeconfig Secret")
    return kubeconfig_secret(view.name) if secret else "", asks


def _make_kubeconfig(view: View, provisioning: Object, management: Object, secret: Object | None) -> Effect:
    """Keyed by all that it depends on, so that it is made again where that has changed, and only then."""
    meta, (server, certificates) = provisioning["metadata"], settings.internal_address(view.setting)
    there = secret["metadata"]["uid"] if secret else ""
    pin = ca_checksum(certificates)
    key = (names.MAKE_KUBECONFIG, meta["uid"], management["metadata"]["uid"], server, pin, there)
    arguments = {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "management": management["metadata"]["name"],
        "owner": owner_reference(PROVISIONING_CLUSTER, provisioning, controller=True),
        "managementOwner": owner_reference(MANAGEMENT_CLUSTER, management, controller=True),
    }
    reason = "the cluster is there, so other programs may reach it"
    return Effect(names.MAKE_KUBECONFIG, key, arguments, reason, repeat=secret is None)


def _has_been_ready(provisioning: Object, management: Object) -> bool:
    return bool((provisioning.get("status") or {}).get("ready")) or clusters.is_connected(management)


# --- what it tells --------------------------------------------------------------------------------------------------


def _report_status(
    view: View,
    provisioning: Object,
    management: Object | None,
    name: str,
    problem: str = "",
    kubeconfig: str = "",
) -> Decision:
    before = provisioning.get("status") or {}
    ready = bool(before.get("ready")) or (management is not None and clusters.is_connected(management))
    wanted = [_created(management, problem), *_mirrored(provisioning, management)]
    if problem or not clusters.is_provisioned_here(provisioning):
        wanted += clusters.progress("" if ready else clusters.WAITING, problem)
        before = {**before, "observedGeneration": provisioning["metadata"].get("generation", 0)}
    status = {
        **before,
        "ready": ready,
        "agentDeployed": management is not None and clusters.is_provisioned(management),
        "conditions": merged_with_updates(before.get("conditions"), wanted, view.now),
        "fleetWorkspaceName": view.namespace,
        **({"clusterName": name} if name else {}),
        **({"clientSecretName": kubeconfig} if kubeconfig else {}),
    }
    writes = status_patch(PROVISIONING_CLUSTER, provisioning, status, "what became of the cluster")
    return Decision(writes=writes) + (waiting(problem, ref(PROVISIONING_CLUSTER, provisioning)) if problem else DONE)


def _created(management: Object | None, problem: str) -> Condition:
    if problem:
        return condition(clusters.CREATED, "False", "Error", problem)
    if management is None:
        return condition(clusters.CREATED, "Unknown", clusters.WAITING, "its management Cluster is being made")
    return condition(clusters.CREATED, "True", clusters.CREATED)


def _mirrored(provisioning: Object, management: Object | None) -> Iterable[Condition]:
    """Whether a cluster that is built here is ready is for its control plane to say."""
    told_elsewhere = clusters.is_provisioned_here(provisioning)
    types = (clusters.CONNECTED,) if told_elsewhere else (clusters.CONNECTED, clusters.PROVISIONED, clusters.READY)
    for type_ in types:
        if known := find(management, type_):
            yield condition(type_, known["status"], known.get("reason", ""), known.get("message", ""))


# --- removal --------------------------------------------------------------------------------------------------------


def _remove(view: View, provisioning: Object) -> Decision:
    """Its management Cluster goes too, but is not waited for: that one waits for this. The manager's own stays."""
    if names.REMOVE_PROVISIONING not in (provisioning["metadata"].get("finalizers") or ()):
        return DONE
    # Rights go by name: they end before another user's cluster can have it.
    rights = view.select(ROLE_BINDING, index=(BY_OWNER, provisioning["metadata"]["uid"]))
    ended = tuple(delete(ROLE_BINDING, each, f"{view.key} is deleted") for each in rights)
    released = (*ended, *_finalizer(provisioning, add=False))
    name = (provisioning.get("status") or {}).get("clusterName", "")
    management = view.get(MANAGEMENT_CLUSTER, name) if name else None
    meta = provisioning["metadata"]
    if management is None or is_deleting(management) or clusters.is_internal(management):
        return Decision(writes=released)
    if not clusters.belongs(management, meta["namespace"], meta["name"]):
        return Decision(writes=released)
    return Decision(writes=(delete(MANAGEMENT_CLUSTER, management, f"{view.key} is deleted"), *released))


def _finalizer(provisioning: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in provisioning["metadata"].get("finalizers") or () if each != names.REMOVE_PROVISIONING]
    wanted = [*others, names.REMOVE_PROVISIONING] if add else others
    changed_ = {**provisioning, "metadata": {**provisioning["metadata"], "finalizers": wanted}}
    reason = "its management Cluster is to go with it" if add else "nothing of it is left"
    return object_patch(PROVISIONING_CLUSTER, provisioning, changed_, reason)


# --- what sets it off -----------------------------------------------------------------------------------------------


def _named(provisioning: Object) -> Iterable[str]:
    """Indexer: the management Cluster that it has, or is to have."""
    name = (provisioning.get("status") or {}).get("clusterName") or annotations_of(provisioning).get(
        names.MANAGEMENT_NAME
    )
    return (str(name),) if name else ()


def _own_name(management: Object) -> Iterable[str]:
    return (management["metadata"]["name"],)


def _all(_provisioning: Object) -> Iterable[str]:
    return (ALL,)


_ADDRESS = frozenset(
    {
        settings.SERVER_URL,
        settings.SERVER_CERTIFICATES,
        settings.INTERNAL_SERVER_URL,
        settings.INTERNAL_SERVER_CERTIFICATES,
    }
)


def _everything(setting: Object) -> Iterable[str]:
    return (ALL,) if setting["metadata"]["name"] in _ADDRESS else ()


CONTROLLER = Controller(
    name="provisioning-cluster",
    kind=PROVISIONING_CLUSTER,
    reconcile=reconcile,
    watches=(
        Watches(MANAGEMENT_CLUSTER, Indexed(BY_NAME, _own_name)),
        Watches(SECRET_METADATA, owner(PROVISIONING_CLUSTER), changed()),
        Watches(ROLE_BINDING),
        Watches(SETTING, Indexed(ALL, _everything), changed("value")),
    ),
    predicate=changed("spec", "metadata.finalizers", "metadata.deletionTimestamp", "metadata.annotations", "status"),
    indexes={PROVISIONING_CLUSTER: {BY_NAME: _named, ALL: _all}, ROLE_BINDING: {BY_OWNER: owners}},
)
