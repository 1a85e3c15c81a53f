"""Objects referenced by a Cluster: adoption, and the endpoint and failure domains that they report."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.contract import control_plane, definition_name, infra_cluster, reference_group
from herder.api.capi.contract.fields import Endpoint
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME, is_deleting, labels_of
from herder.api.writes import object_patch, owner_reference, with_owner
from herder.controllers.capi.cluster.scope import ClusterScope
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Parallel, Patch, Ref, Wait

REFERENCES_INDEX = "cluster-references"
DEFINITIONS_INDEX = "cluster-definitions"

_FIELDS = ("infrastructureRef", "controlPlaneRef")


def adopt(scope: ClusterScope) -> Decision:
    """Add owner reference and label; providers wait for the owner reference before they start."""
    named = [external for external in (scope.infrastructure, scope.control_plane) if external is not None]
    writes = tuple(patch for external in named for patch in _adoption(scope.cluster, external))
    return Decision(writes=(Parallel(writes),)) if writes else Decision()


def set_endpoint(scope: ClusterScope) -> tuple[Patch, ...]:
    """Copy the API endpoint from the first provider that reports one, unless the user set it."""
    if scope.endpoint.valid:
        return ()
    endpoint = _reported_endpoint(scope)
    if endpoint is None:
        return ()
    spec = {**scope.cluster["spec"], "controlPlaneEndpoint": {"host": endpoint.host, "port": endpoint.port}}
    return object_patch(
        CLUSTER, scope.cluster, {**scope.cluster, "spec": spec}, "the provider reports the control plane endpoint"
    )


def failure_domains(scope: ClusterScope) -> list[Object]:
    known: list[Object] = scope.status("failureDomains", [])
    infrastructure = scope.infrastructure
    if infrastructure is None or infrastructure.obj is None or is_deleting(infrastructure.obj):
        return known
    return infra_cluster.failure_domains(infrastructure.obj, infrastructure.contract) if scope.provisioned else known


def wait(scope: ClusterScope) -> Wait | None:
    """The first referenced object that the Cluster waits for."""
    if scope.infrastructure is not None and not scope.provisioned:
        return _waits_for(scope, scope.infrastructure, "infrastructureRef", "to be provisioned")
    if scope.control_plane is not None and not scope.initialized:
        return _waits_for(scope, scope.control_plane, "controlPlaneRef", "to be initialized")
    return None


def references_of(cluster: Object) -> Iterator[str]:
    """Indexer: the objects that a Cluster references, regardless of their owners."""
    for reference in _references(cluster):
        namespace = cluster["metadata"].get("namespace", "")
        yield f"{reference_group(reference)}/{reference['kind']}/{namespace}/{reference['name']}"


def reference_to(obj: Object) -> Iterator[str]:
    """Index key of the Clusters that reference this object."""
    group = obj["apiVersion"].rpartition("/")[0]
    yield f"{group}/{obj['kind']}/{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def definitions_of(cluster: Object) -> Iterator[str]:
    """Indexer: the CRDs of the kinds that a Cluster references."""
    for reference in _references(cluster):
        yield definition_name(reference_group(reference), reference["kind"])


def _references(cluster: Object) -> Iterator[Object]:
    for field in _FIELDS:
        reference = (cluster.get("spec") or {}).get(field) or {}
        if reference.get("kind") and reference.get("name"):
            yield reference


def _adoption(cluster: Object, external: External) -> tuple[Patch, ...]:
    if external.obj is None or external.kind is None:
        return ()
    adopted = external.obj
    if not _is_owner(cluster, adopted):
        adopted = with_owner(adopted, owner_reference(CLUSTER, cluster, controller=False))
    labels = {**labels_of(adopted), CLUSTER_NAME: cluster["metadata"]["name"]}
    adopted = {**adopted, "metadata": {**adopted["metadata"], "labels": labels}}
    return object_patch(external.kind, external.obj, adopted, "it belongs to the Cluster")


def _is_owner(cluster: Object, obj: Object) -> bool:
    """Accept an owner reference with controller=true as well."""
    wanted = owner_reference(CLUSTER, cluster, controller=False)
    owners = obj["metadata"].get("ownerReferences") or []
    return any(all(owner.get(field) == value for field, value in wanted.items()) for owner in owners)


def _reported_endpoint(scope: ClusterScope) -> Endpoint | None:
    infrastructure, plane = scope.infrastructure, scope.control_plane
    endpoints = []
    if infrastructure is not None and infrastructure.obj is not None and scope.provisioned:
        endpoints.append(infra_cluster.endpoint(infrastructure.obj, infrastructure.contract))
    if plane is not None and plane.obj is not None and scope.initialized:
        endpoints.append(control_plane.endpoint(plane.obj, plane.contract))
    return next((endpoint for endpoint in endpoints if endpoint.valid), None)


def _waits_for(scope: ClusterScope, external: External, field: str, state: str) -> Wait:
    reference = scope.cluster["spec"][field]
    name = f"{reference['kind']} {reference['name']}"
    if external.problem:
        return Wait(f"{name} cannot be read: {external.problem}")
    if external.kind is None:
        definition = definition_name(reference_group(reference), reference["kind"])
        return Wait(f"{name} does not exist, nor does its CustomResourceDefinition {definition}")
    on = Ref(external.kind, reference["name"], scope.cluster["metadata"]["namespace"])
    return Wait(f"{name} does not exist" if external.obj is None else f"waiting for {name} {state}", on)
