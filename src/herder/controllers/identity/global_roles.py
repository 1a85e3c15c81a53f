"""GlobalRoles: a ClusterRole here, and a Role in each namespace that has rules."""

from __future__ import annotations

from herder.api.capi.names import is_deleting
from herder.api.identity import roles
from herder.api.identity.roles import CLUSTER_ROLE
from herder.api.machines.jobs import ROLE
from herder.api.management.kinds import GLOBAL_ROLE
from herder.api.writes import delete, owner_reference, with_owner
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Write
from herder.engine.runtime.handlers import Watches, changed, owner
from herder.engine.runtime.view import View


def reconcile(view: View) -> Decision:
    role = view.get(GLOBAL_ROLE, view.name)
    if role is None or is_deleting(role):
        return DONE  # Owned objects are garbage collected.
    reference = owner_reference(GLOBAL_ROLE, role, controller=True)
    name = roles.global_role_name(view.name)
    here = roles.cluster_role(name, role.get("rules") or [])
    writes: list[Write] = [Apply(CLUSTER_ROLE, with_owner(here, reference), "rules of the global role")]
    wanted = {place: rules or [] for place, rules in sorted((role.get("namespacedRules") or {}).items())}
    for place, rules in wanted.items():
        local = _role(name, place, rules)
        writes.append(Apply(ROLE, with_owner(local, reference), "rules of the global role in this namespace"))
    for left in view.owned(ROLE, role["metadata"]["uid"]):
        if left["metadata"]["namespace"] not in wanted:
            writes.append(delete(ROLE, left, "the role has no rules for this namespace anymore"))
    return Decision(writes=tuple(writes))


def _role(name: str, namespace: str, rules: list[Object]) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": ROLE.api_version, "kind": ROLE.kind, "metadata": meta, "rules": rules}


CONTROLLER = Controller(
    name="global-role",
    kind=GLOBAL_ROLE,
    reconcile=reconcile,
    watches=(
        Watches(CLUSTER_ROLE, owner(GLOBAL_ROLE), changed("rules")),
        Watches(ROLE, owner(GLOBAL_ROLE), changed("rules")),
    ),
    predicate=changed("rules", "namespacedRules"),
)
