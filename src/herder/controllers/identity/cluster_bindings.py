"""A ClusterRoleTemplateBinding lets its subject reach one cluster, and gives it the template's rights there.

Both end with it: a finalizer keeps it until what it made in the cluster is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from herder.api.capi.names import is_deleting, labels_of
from herder.api.identity import roles
from herder.api.identity.roles import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, FROM_TEMPLATE, OWNED_BY
from herder.api.machines.jobs import ROLE, ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import CLUSTER_BINDING, MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER, ROLE_TEMPLATE
from herder.api.writing import delete, object_patch, owner_reference, ref, with_owner
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import (
    DONE,
    MANAGEMENT,
    Apply,
    Decision,
    Delete,
    Observe,
    Projection,
    Ref,
    Write,
    waiting,
)
from herder.engine.runtime.triggers import Indexed, Watches, changed
from herder.engine.runtime.view import Observed, Unreachable, View

FINALIZER = "management.herder.io/cluster-binding"
BY_CLUSTER, ALL = "cluster", "all"


def reconcile(view: View) -> Decision:
    binding = view.get(CLUSTER_BINDING, view.name)
    if binding is None:
        return DONE
    cluster = view.get(MANAGEMENT_CLUSTER, view.namespace)
    if is_deleting(binding):
        return _remove(view, binding, cluster)
    subject, template = roles.subject_of(binding), view.get(ROLE_TEMPLATE, binding["roleTemplateName"])
    problem = _problem(view, binding, cluster, subject, template)
    if problem or cluster is None or template is None or isinstance(subject, str):
        return _nothing_left(view, binding, cluster) + waiting(problem, ref(CLUSTER_BINDING, binding))
    if FINALIZER not in (binding["metadata"].get("finalizers") or ()):
        return Decision(writes=_finalizer(binding, add=True))
    here = Decision(writes=tuple(_membership(view, binding, cluster, template, subject)))
    return here + _downstream(view, binding, cluster, template, subject)


def _problem(
    view: View, binding: Object, cluster: Object | None, subject: Object | str, template: Object | None
) -> str:
    """A binding is about the cluster whose namespace it is in, whatever it says: whoever may write there may not
    thereby hand out rights elsewhere."""
    if binding["clusterName"] != view.namespace:
        return f"clusterName must be {view.namespace}, the namespace that the binding is in"
    if cluster is None or is_deleting(cluster):
        return f"there is no cluster {view.namespace}"
    if isinstance(subject, str):
        return subject
    if template is None:
        return f"there is no RoleTemplate {binding['roleTemplateName']}"
    return roles.unusable(template, lambda name: view.get(ROLE_TEMPLATE, name))


# --- access to the cluster ------------------------------------------------------------------------------------------


def _membership(view: View, binding: Object, cluster: Object, template: Object, subject: Object) -> Iterable[Write]:
    owner = roles.is_owner(template, lambda name: view.get(ROLE_TEMPLATE, name))
    role = roles.membership_role(view.namespace, owner=owner)
    wanted = roles.membership_binding(binding, subject, role["metadata"]["name"])
    reference = owner_reference(MANAGEMENT_CLUSTER, cluster, controller=False)
    yield Apply(CLUSTER_ROLE, with_owner(role, reference), "what lets people reach the cluster")
    yield from _bound(view, CLUSTER_ROLE_BINDING, with_owner(wanted, reference))
    for pair in view.select(PROVISIONING_CLUSTER, index=(BY_CLUSTER, view.namespace)):
        role = roles.pair_role(view.namespace, pair, owner=owner)
        reference = owner_reference(PROVISIONING_CLUSTER, pair, controller=False)
        yield Apply(ROLE, with_owner(role, reference), "what lets people see the cluster")
        yield from _bound(view, ROLE_BINDING, with_owner(roles.pair_binding(binding, subject, role), reference))


def _bound(view: View, kind: Kind, wanted: Object) -> Iterable[Write]:
    """What a binding refers to cannot be changed: one that refers to something else is replaced."""
    known = view.get(kind, wanted["metadata"]["name"], wanted["metadata"].get("namespace"))
    if known is not None and known["roleRef"] != wanted["roleRef"]:
        yield delete(kind, known, "it binds to another role")
    yield Apply(kind, wanted, "who may reach the cluster")


def _own(view: View, binding: Object, kind: Kind = CLUSTER_ROLE_BINDING) -> list[Object]:
    return view.select(kind, index=(OWNED_BY, roles.owner_label(binding)))


def _deletions(view: View, binding: Object) -> tuple[Write, ...]:
    """Of all that it made here."""
    kinds = (CLUSTER_ROLE_BINDING, ROLE_BINDING)
    return tuple(delete(kind, each, "nobody has it") for kind in kinds for each in _own(view, binding, kind))


# --- rights in the cluster ------------------------------------------------------------------------------------------


def _role_facts(role: Object) -> Object:
    return {"metadata": {"name": role["metadata"]["name"]}, "rules": role.get("rules") or []}


def _binding_facts(binding: Object) -> Object:
    meta = binding["metadata"]
    known = {"name": meta["name"], "uid": meta["uid"], "labels": {OWNED_BY: labels_of(binding).get(OWNED_BY, "")}}
    return {"metadata": known, "roleRef": binding["roleRef"], "subjects": binding.get("subjects") or []}


def _name(obj: Object) -> Iterable[str]:
    return (obj["metadata"]["name"],)


def _owner(obj: Object) -> Iterable[str]:
    label = labels_of(obj).get(OWNED_BY)
    return (label,) if label else ()


ROLES = Projection("template-role", project=_role_facts, indexes={"name": _name})
BINDINGS = Projection("template-binding", project=_binding_facts, indexes={"owner": _owner})


def _downstream(view: View, binding: Object, cluster: Object, template: Object, subject: Object) -> Decision:
    role, names = roles.downstream_roles(template, lambda name: view.get(ROLE_TEMPLATE, name))
    wanted = {each["metadata"]["name"]: each for each in roles.downstream_bindings(binding, subject, names)}
    if is_internal(cluster):
        return Decision(writes=tuple(_bring_here(view, binding, role, wanted)))
    if not is_connected(cluster):
        return waiting(f"the agent of cluster {view.namespace} is not connected", ref(MANAGEMENT_CLUSTER, cluster))
    bindings = _seen_bindings(view, binding)
    focus = ("name", roles.template_role_name(template["metadata"]["name"]))
    kept = Observe(view.namespace, CLUSTER_ROLE, labels=FROM_TEMPLATE, projection=ROLES, focus=focus)
    needs = Decision(observe=(bindings, kept))
    seen, seen_roles = view.observed(bindings), view.observed(kept)
    if not isinstance(seen, Observed) or not isinstance(seen_roles, Observed):
        return needs + _silence(view, seen if isinstance(seen, Unreachable) else seen_roles)
    known = {each["metadata"]["name"]: each for each in seen.objects}
    return needs + Decision(writes=tuple(_bring(view.namespace, role, wanted, seen_roles.objects, known)))


def _bring_here(view: View, binding: Object, role: Object | None, wanted: dict[str, Object]) -> Iterable[Write]:
    """Into the manager's own cluster, which has the membership's binding too."""
    known = {each["metadata"]["name"]: each for each in _own(view, binding)}
    others = {name: each for name, each in known.items() if not name.endswith("-membership")}
    yield from _bring(MANAGEMENT, role, wanted, (), others)


def _bring(
    target: str, role: Object | None, wanted: dict[str, Object], seen: Iterable[Object], known: dict[str, Object]
) -> Iterable[Write]:
    if role is not None and not any(each["rules"] == role["rules"] for each in seen):
        yield Apply(CLUSTER_ROLE, role, "the rights of the template", target=target)
    for name, each in known.items():
        if name not in wanted or each["roleRef"] != wanted[name]["roleRef"]:
            yield _gone(each, target)
    for name, each in wanted.items():
        if known.get(name, {}).get("subjects") != each["subjects"]:
            yield Apply(CLUSTER_ROLE_BINDING, each, "who has these rights", target=target)


def _gone(binding: Object, target: str) -> Delete:
    meta = binding["metadata"]
    return Delete(Ref(CLUSTER_ROLE_BINDING, meta["name"]), meta["uid"], "nobody has these rights by it", target=target)


def _seen_bindings(view: View, binding: Object) -> Observe:
    owner = roles.owner_label(binding)
    return Observe(view.namespace, CLUSTER_ROLE_BINDING, labels=OWNED_BY, projection=BINDINGS, focus=("owner", owner))


def _silence(view: View, seen: Observed | Unreachable | None) -> Decision:
    if isinstance(seen, Unreachable):
        return waiting(f"cluster {view.namespace} does not answer: {seen.reason}")
    return DONE


# --- the end --------------------------------------------------------------------------------------------------------


def _nothing_left(view: View, binding: Object, cluster: Object | None) -> Decision:
    """A binding that cannot be understood gives nobody anything, also if it once did."""
    return Decision(writes=_deletions(view, binding)) + _nothing_left_there(view, binding, cluster)[0]


def _nothing_left_there(view: View, binding: Object, cluster: Object | None) -> tuple[Decision, bool]:
    """What is to be done in the cluster, and whether that is all."""
    if cluster is None or is_deleting(cluster) or is_internal(cluster):
        return DONE, True  # what was made here goes with the rest
    if not is_connected(cluster):
        told = f"the agent of cluster {view.namespace} is not connected: the rights there end when it is back"
        return waiting(told, ref(MANAGEMENT_CLUSTER, cluster)), False
    wish = _seen_bindings(view, binding)
    seen = view.observed(wish)
    if not isinstance(seen, Observed):
        return Decision(observe=(wish,)) + _silence(view, seen), False
    left = tuple(_gone(each, view.namespace) for each in seen.objects)
    return Decision(writes=left, observe=(wish,)), not left


def _remove(view: View, binding: Object, cluster: Object | None) -> Decision:
    if FINALIZER not in (binding["metadata"].get("finalizers") or ()):
        return DONE
    here = _deletions(view, binding)
    there, done = _nothing_left_there(view, binding, cluster)
    if here or not done:
        return Decision(writes=here) + there
    return Decision(writes=_finalizer(binding, add=False))


def _finalizer(binding: Object, *, add: bool) -> tuple[Write, ...]:
    others = [each for each in binding["metadata"].get("finalizers") or () if each != FINALIZER]
    wanted = {**binding["metadata"], "finalizers": [*others, FINALIZER] if add else others}
    reason = "what it makes in the cluster ends with it" if add else "nothing of it is left"
    return object_patch(CLUSTER_BINDING, binding, {**binding, "metadata": wanted}, reason)


# --- what sets it off -----------------------------------------------------------------------------------------------


def _every(_obj: Object) -> Iterable[str]:
    return ("",)


def _cluster_of(binding: Object) -> Iterable[str]:
    return (binding["metadata"]["namespace"],)


def _managed(provisioning: Object) -> Iterable[str]:
    """By its own status, which the manager alone writes."""
    name = (provisioning.get("status") or {}).get("clusterName")
    return (name,) if name else ()


def _reached(kind: Kind) -> Watches:
    matters = changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp")
    return Watches(kind, Indexed(BY_CLUSTER, _name), matters)


CONTROLLER = Controller(
    name="cluster-role-template-binding",
    kind=CLUSTER_BINDING,
    reconcile=reconcile,
    watches=(
        Watches(ROLE_TEMPLATE, Indexed(ALL, _every), changed("rules", "roleTemplateNames", "external", "context")),
        _reached(MANAGEMENT_CLUSTER),
        Watches(CLUSTER_ROLE),
        Watches(CLUSTER_ROLE_BINDING, Indexed(OWNED_BY, _owner), changed("subjects", "roleRef")),
        Watches(ROLE),
        Watches(ROLE_BINDING, Indexed(OWNED_BY, _owner), changed("subjects", "roleRef")),
        Watches(PROVISIONING_CLUSTER, Indexed(BY_CLUSTER, _managed), changed("status.clusterName")),
    ),
    indexes={
        CLUSTER_BINDING: {
            ALL: _every,
            BY_CLUSTER: _cluster_of,
            OWNED_BY: lambda binding: (roles.owner_label(binding),),
        },
        CLUSTER_ROLE_BINDING: {OWNED_BY: _owner},
        ROLE_BINDING: {OWNED_BY: _owner},
        PROVISIONING_CLUSTER: {BY_CLUSTER: _managed},
    },
    cluster_of=lambda binding: str(binding["metadata"]["namespace"]),
)
