"""A ClusterRoleTemplateBinding lets its subject reach one cluster, and gives it the template's rights there.

Both end with it: a finalizer keeps it until what it made in the cluster is gone.
"""

from __future__ import annotations

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.identity import roles
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import CLUSTER_BINDING, PROJECT_BINDING, ROLE_TEMPLATE
from herder.api.writing import ref
from herder.controllers.identity import granting
from herder.controllers.identity.granting import template_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Decision, waiting
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.view import Observed, View

FINALIZER = "management.herder.io/cluster-binding"


def reconcile(view: View) -> Decision:
    binding = view.get(CLUSTER_BINDING, view.name)
    if binding is None:
        return DONE
    cluster = granting.cluster_of(view, view.namespace)
    if is_deleting(binding):
        return granting.removed(view, CLUSTER_BINDING, binding, cluster, CLUSTER_ROLE_BINDING, FINALIZER)
    subject, template = roles.subject_of(binding), view.get(ROLE_TEMPLATE, binding["roleTemplateName"])
    problem = _problem(view, binding, cluster, subject, template)
    if problem or cluster is None or template is None or isinstance(subject, str):
        return granting.nothing_left(view, binding, cluster, CLUSTER_ROLE_BINDING) + waiting(
            problem, ref(CLUSTER_BINDING, binding)
        )
    if not granting.has_finalizer(binding, FINALIZER):
        return Decision(writes=granting.finalizer(CLUSTER_BINDING, binding, FINALIZER, add=True))
    owner = roles.is_owner(template, template_of(view))
    here = Decision(writes=tuple(granting.membership(view, binding, cluster, subject, owner=owner)))
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
    return roles.unusable(template, template_of(view))


# --- rights in the cluster ------------------------------------------------------------------------------------------


def _downstream(view: View, binding: Object, cluster: Object, template: Object, subject: Object) -> Decision:
    role, names = roles.downstream_roles(template, template_of(view))
    wanted = roles.downstream_bindings(binding, subject, names)
    if is_internal(cluster):
        made = granting.made_here(view, binding, CLUSTER_ROLE_BINDING)
        known = [each for each in made if not roles.is_membership(each)]
        return Decision(writes=tuple(granting.brought(MANAGEMENT, CLUSTER_ROLE_BINDING, role, wanted, (), known)))
    if not is_connected(cluster):
        return granting.away(cluster)
    bindings = granting.seen_bindings(view.namespace, CLUSTER_ROLE_BINDING, binding)
    kept = granting.seen_roles(view.namespace, template)
    needs = Decision(observe=(bindings, kept))
    seen, seen_roles = view.observed(bindings), view.observed(kept)
    if not isinstance(seen, Observed) or not isinstance(seen_roles, Observed):
        return needs + granting.silence(view.namespace, seen, seen_roles)
    writes = granting.brought(view.namespace, CLUSTER_ROLE_BINDING, role, wanted, seen_roles.objects, seen.objects)
    return needs + Decision(writes=tuple(writes))


CONTROLLER = Controller(
    name="cluster-role-template-binding",
    kind=CLUSTER_BINDING,
    reconcile=reconcile,
    watches=(*granting.WATCHES, Watches(PROJECT_BINDING), Watches(NAMESPACE)),
    indexes=granting.INDEXES,
    cluster_of=lambda binding: str(binding["metadata"]["namespace"]),
)
