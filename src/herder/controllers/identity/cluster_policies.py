"""ValidatingAdmissionPolicies in managed clusters: who may move a namespace into a project.

Members of the project get rights in the namespace. Requests of a cluster's own users do not pass through the manager,
so its API server must decide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from herder.api.capi.names import annotations_of, is_deleting
from herder.api.identity.tenancy_policies import IN_CLUSTERS
from herder.api.management.clusters import is_connected, is_internal
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.api.management.names import PREFIX
from herder.api.policies import POLICY, POLICY_BINDING
from herder.controllers.identity import cluster_rights
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Observe, Projection, Write
from herder.engine.runtime.handlers import changed
from herder.engine.runtime.view import Observed, View

REVISION = f"{PREFIX}policy-revision"
"""Annotation with a digest of the policy; API servers set defaults, so contents cannot be compared."""
_LIST_INTERVAL_SECONDS = 60.0
"""Minimum interval between lists; a watch would cost one connection per cluster."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster) or is_internal(cluster) or not is_connected(cluster):
        return DONE
    subscriptions = tuple(_subscription(view.name, kind, _name(obj)) for kind, obj in _wanted())
    seen = [view.observed(subscription) for subscription in subscriptions]
    needs = Decision(observe=subscriptions)
    known: dict[tuple[Kind, str], Object] = {}
    for subscription, found in zip(subscriptions, seen, strict=True):
        if not isinstance(found, Observed):
            return needs + cluster_rights.unreachable(view.name, *seen)
        known |= {(subscription.kind, _name(each)): each for each in found.objects}
    return needs + Decision(writes=tuple(_missing(view.name, known)))


def _missing(target: str, known: dict[tuple[Kind, str], Object]) -> Iterable[Write]:
    for kind, wanted in _wanted():
        obj = _with_revision(wanted)
        downstream = known.get((kind, _name(obj)))
        if downstream is None or annotations_of(downstream).get(REVISION) != annotations_of(obj)[REVISION]:
            yield Apply(kind, obj, "restrict who may move namespaces into projects", target=target)


def _wanted() -> Iterable[tuple[Kind, Object]]:
    """All policies and bindings, each policy before its binding."""
    return (pair for policy in IN_CLUSTERS for pair in zip((POLICY, POLICY_BINDING), policy, strict=True))


def _with_revision(obj: Object) -> Object:
    digest = hashlib.sha256(json.dumps(obj["spec"], sort_keys=True).encode()).hexdigest()[:16]
    return {**obj, "metadata": {**obj["metadata"], "annotations": {REVISION: digest}}}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _facts(obj: Object) -> Object:
    marks = annotations_of(obj)
    known = {REVISION: marks[REVISION]} if REVISION in marks else {}
    return {"metadata": {"name": _name(obj), "annotations": known}}


POLICIES = Projection("policy-of-manager", project=_facts, indexes={"name": cluster_rights.by_name})


def _subscription(cluster: str, kind: Kind, name: str) -> Observe:
    """One policy by name: a cluster may have any number of policies."""
    return Observe(cluster, kind, projection=POLICIES, freshness=_LIST_INTERVAL_SECONDS, focus=("name", name))


CONTROLLER = Controller(
    name="cluster-policies",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    predicate=changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp"),
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
