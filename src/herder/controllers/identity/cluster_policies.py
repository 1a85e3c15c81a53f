"""Rules that are in force in managed clusters: who moves a namespace into a project there, whose members thereby get
rights in it.

Requests of a cluster's own administrators and programs do not pass through the manager, so its API server must decide.
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
from herder.controllers.identity import granting
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Observe, Projection, Write
from herder.engine.runtime.handlers import changed
from herder.engine.runtime.view import Observed, View

REVISION = f"{PREFIX}policy-revision"
"""On a policy in a cluster: a digest of what it says. API servers fill in defaults, so the contents never compare."""
_LISTED_AFTER_SECONDS = 60.0
"""They are listed when the agent connects, at most so often, and not watched: that would cost a watch per cluster."""


def reconcile(view: View) -> Decision:
    cluster = view.get(MANAGEMENT_CLUSTER, view.name)
    if cluster is None or is_deleting(cluster) or is_internal(cluster) or not is_connected(cluster):
        return DONE
    wishes = tuple(_seen(view.name, kind) for kind in (POLICY, POLICY_BINDING))
    seen = [view.observed(wish) for wish in wishes]
    needs = Decision(observe=wishes)
    policies, bindings = seen
    if not isinstance(policies, Observed) or not isinstance(bindings, Observed):
        return needs + granting.silence(view.name, *seen)
    known = {(kind, _name(each)): each for kind, found in _pairs(policies, bindings) for each in found}
    return needs + Decision(writes=tuple(_missing(view.name, known)))


def _missing(target: str, known: dict[tuple[Kind, str], Object]) -> Iterable[Write]:
    """A policy comes before what puts it in force."""
    for kinds in (zip((POLICY, POLICY_BINDING), policy, strict=True) for policy in IN_CLUSTERS):
        for kind, wanted in kinds:
            obj = _marked(wanted)
            there = known.get((kind, _name(obj)))
            if there is None or annotations_of(there).get(REVISION) != annotations_of(obj)[REVISION]:
                yield Apply(kind, obj, "who may move namespaces into projects", target=target)


def _pairs(policies: Observed, bindings: Observed) -> Iterable[tuple[Kind, Iterable[Object]]]:
    return ((POLICY, policies.objects), (POLICY_BINDING, bindings.objects))


def _marked(obj: Object) -> Object:
    digest = hashlib.sha256(json.dumps(obj["spec"], sort_keys=True).encode()).hexdigest()[:16]
    return {**obj, "metadata": {**obj["metadata"], "annotations": {REVISION: digest}}}


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _facts(obj: Object) -> Object:
    marks = annotations_of(obj)
    known = {REVISION: marks[REVISION]} if REVISION in marks else {}
    return {"metadata": {"name": _name(obj), "annotations": known}}


POLICIES = Projection("policy-of-manager", project=_facts)


def _seen(cluster: str, kind: Kind) -> Observe:
    return Observe(cluster, kind, projection=POLICIES, freshness=_LISTED_AFTER_SECONDS)


CONTROLLER = Controller(
    name="cluster-policies",
    kind=MANAGEMENT_CLUSTER,
    reconcile=reconcile,
    predicate=changed("spec.internal", "metadata.annotations", "metadata.deletionTimestamp"),
    cluster_of=lambda cluster: str(cluster["metadata"]["name"]),
)
