"""Clusters, projects and their bindings as the API server serves them, and decisions about them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.builtin_roles import GLOBAL_ROLES, ROLE_TEMPLATES
from herder.api.identity.projects import PROJECT_ID
from herder.api.management.kinds import CLUSTER_BINDING, GLOBAL_ROLE_BINDING, MANAGEMENT_CLUSTER, PROJECT_BINDING
from herder.api.management.names import CONNECTED_SINCE
from herder.controllers.identity import cluster_bindings, project_bindings
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import Decision, Observe
from herder.engine.runtime.view import Observed, Unreachable
from tests.support.builders import DELETED_AT, NOW, new_manifest, new_object, reconcile, write_summary, writes_of

BUILTIN_ROLES = (*GLOBAL_ROLES, *ROLE_TEMPLATES)
BACKING_NAMESPACE = "c-m-1-p-abcde"
DELETING = {"deletionTimestamp": DELETED_AT}


def cluster(name: str = "c-m-1", *, connected: bool = True, **fields: Any) -> Object:
    """A management Cluster, whose agent is connected unless `connected` says otherwise."""
    annotations = {CONNECTED_SINCE: "2026-01-01T00:00:00Z"} if connected else {}
    return new_object(MANAGEMENT_CLUSTER, name, metadata={"annotations": annotations}, **fields)


def cluster_manifest(name: str) -> Object:
    """A management Cluster with a connected agent, as it is created in a simulation."""
    return new_manifest(MANAGEMENT_CLUSTER, name, annotations={CONNECTED_SINCE: "2026-01-01T00:00:00Z"}, spec={})


def namespace(name: str, project_id: str = "", **metadata: Any) -> Object:
    """A namespace, in the project `project_id` if that is given."""
    annotations = {PROJECT_ID: project_id} if project_id else {}
    return new_object(NAMESPACE, name, metadata={"annotations": annotations, **metadata})


def grb(role: str = "admin", **fields: Any) -> Object:
    """A GlobalRoleBinding."""
    return new_object(GLOBAL_ROLE_BINDING, "g", globalRoleName=role, **fields)


def crtb(template: str = "cluster-member", *, metadata: Object | None = None, **fields: Any) -> Object:
    """A ClusterRoleTemplateBinding of the user u-1, with its finalizer."""
    body = {"clusterName": "c-m-1", "roleTemplateName": template, "userName": "u-1", **fields}
    finalizers = [cluster_bindings.FINALIZER]
    return new_object(CLUSTER_BINDING, "b", "c-m-1", finalizers=finalizers, metadata=metadata, **body)


def prtb(
    template: str = "project-member",
    namespace: str = BACKING_NAMESPACE,
    *,
    metadata: Object | None = None,
    **fields: Any,
) -> Object:
    """A ProjectRoleTemplateBinding of the user u-1, with its finalizer."""
    body = {"projectName": "c-m-1:p-abcde", "roleTemplateName": template, "userName": "u-1", **fields}
    finalizers = [project_bindings.FINALIZER]
    return new_object(PROJECT_BINDING, "b", namespace, finalizers=finalizers, metadata=metadata, **body)


def decide(
    controller: Controller, key: str, *objects: Object, remote_objects: list[Object] | str | None = None
) -> Decision:
    """One reconcile with the built-in roles.

    `remote_objects` exist in the observed cluster; a string is the error of a cluster that is unreachable, and None
    stands for one that has not been observed yet.
    """

    def observed(request: Observe) -> Observed | Unreachable | None:
        if isinstance(remote_objects, str):
            return Unreachable(remote_objects, NOW)
        if remote_objects is None:
            return None
        assert request.projection is not None
        assert request.focus is not None
        kept = [request.projection.project(each) for each in remote_objects if each["kind"] == request.kind.kind]
        index = request.projection.indexes[request.focus[0]]
        return Observed(tuple(each for each in kept if request.focus[1] in index(each)), datetime.now(UTC))

    return reconcile(controller, key, *BUILTIN_ROLES, *objects, observed=observed)


def summaries_with_targets(decision: Decision) -> list[str]:
    """Each write in words, with the cluster that it goes to: "Delete ClusterRole name in c-m-1"."""
    targets = [(write_summary(write), getattr(write, "target", "")) for write in writes_of(decision)]
    return [f"{summary} in {target}" if target else summary for summary, target in targets]
