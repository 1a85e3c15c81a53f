"""ClusterRoleTemplateBindings: grant access to one cluster, and the template's rights in it.

A finalizer keeps the binding until its RBAC objects in the cluster are deleted.
"""

from __future__ import annotations

from herder.api.capi.kinds import NAMESPACE
from herder.api.capi.names import is_deleting
from herder.api.events import warning
from herder.api.identity import projects, roles
from herder.api.identity.roles import CLUSTER_ROLE_BINDING
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import CLUSTER_BINDING, PROJECT_BINDING, ROLE_TEMPLATE
from herder.api.writes import ref
from herder.controllers.identity import cluster_rights
from herder.controllers.identity.cluster_rights import template_of
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, MANAGEMENT, Decision, waiting
from herder.engine.runtime.handlers import Watches
from herder.engine.runtime.view import Observed, View

FINALIZER = "management.herder.io/cluster-binding"


def reconcile(view: View) -> Decision:
    binding = view.get(CLUSTER_BINDING, view.name)
    cluster = cluster_rights.cluster_of(view, view.namespace)
    if binding is None:
        is_of_project = projects.project_key_of_namespace(view.namespace) is not None
        return DONE if is_of_project else cluster_rights.revoke_deleted(view, cluster, CLUSTER_ROLE_BINDING)
    if is_deleting(binding):
        return cluster_rights.finalize(view, CLUSTER_BINDING, binding, cluster, CLUSTER_ROLE_BINDING, FINALIZER)
    subject, template = roles.subject_of(binding), view.get(ROLE_TEMPLATE, binding["roleTemplateName"])
    problem = _problem(view, binding, cluster, subject, template)
    if problem or cluster is None or template is None or isinstance(subject, str):
        refused = Decision(events=(warning(CLUSTER_BINDING, binding, "BindingRefused", problem),) if problem else ())
        return (
            cluster_rights.revoke_all(view, binding, cluster, CLUSTER_ROLE_BINDING)
            + waiting(problem, ref(CLUSTER_BINDING, binding))
            + refused
        )
    if not cluster_rights.has_finalizer(binding, FINALIZER):
        return Decision(writes=cluster_rights.finalizer(CLUSTER_BINDING, binding, FINALIZER, add=True))
    owner = roles.is_owner(template, template_of(view))
    here = Decision(writes=tuple(cluster_rights.membership(view, binding, cluster, subject, owner=owner)))
    return here + _downstream(view, binding, cluster, template, subject)


def _problem(
    view: View, binding: Object, cluster: Object | None, subject: Object | str, template: Object | None
) -> str:
    """Why the binding is invalid.

    A binding applies to the cluster of its namespace only: write access there must not grant rights elsewhere.
    """
    if binding["clusterName"] != view.namespace:
        return f"clusterName: must be {view.namespace}, the namespace of the binding"
    if cluster is None or is_deleting(cluster):
        return f"cluster {view.namespace} does not exist"
    if isinstance(subject, str):
        return subject
    if template is None:
        return f"RoleTemplate {binding['roleTemplateName']} does not exist"
    return roles.unusable(template, template_of(view))


# --- rights in the cluster ------------------------------------------------------------------------------------------


def _downstream(view: View, binding: Object, cluster: Object, template: Object, subject: Object) -> Decision:
    role, names = roles.downstream_roles(template, template_of(view))
    wanted = roles.downstream_bindings(binding, subject, names)
    if is_internal(cluster):
        made = cluster_rights.local_objects(view, binding, CLUSTER_ROLE_BINDING)
        known = [each for each in made if not roles.is_membership(each)]
        return Decision(
            writes=tuple(cluster_rights.binding_writes(MANAGEMENT, CLUSTER_ROLE_BINDING, role, wanted, (), known))
        )
    if not is_connected(cluster):
        return cluster_rights.agent_disconnected(cluster)
    bindings = cluster_rights.bindings_subscription(view.namespace, CLUSTER_ROLE_BINDING, binding)
    kept = cluster_rights.roles_subscription(view.namespace, template)
    needs = Decision(observe=(bindings, kept))
    seen, observed_roles = view.observed(bindings), view.observed(kept)
    if not isinstance(seen, Observed) or not isinstance(observed_roles, Observed):
        return needs + cluster_rights.unreachable(view.namespace, seen, observed_roles)
    writes = cluster_rights.binding_writes(
        view.namespace, CLUSTER_ROLE_BINDING, role, wanted, observed_roles.objects, seen.objects
    )
    return needs + Decision(writes=tuple(writes))


CONTROLLER = Controller(
    name="cluster-role-template-binding",
    kind=CLUSTER_BINDING,
    reconcile=reconcile,
    watches=(*cluster_rights.WATCHES, Watches(PROJECT_BINDING), Watches(NAMESPACE)),
    indexes=cluster_rights.INDEXES,
    cluster_of=lambda binding: str(binding["metadata"]["namespace"]),
)
