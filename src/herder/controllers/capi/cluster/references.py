"""The objects that a Cluster names: they are made its own, and what they learn is taken over."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.contract import control_plane, definition_name, infra_cluster, reference_group
from herder.api.capi.contract.fields import Endpoint
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME, is_deleting, labels_of
from herder.api.writing import object_patch, owner_reference, with_owner
from herder.controllers.capi.cluster.scene import Scene
from herder.controllers.capi.externals import External
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Decision, Parallel, Patch, Ref, Wait

REFERENCES_INDEX = "cluster-references"
DEFINITIONS_INDEX = "cluster-definitions"

_FIELDS = ("infrastructureRef", "controlPlaneRef")


def adopt(scene: Scene) -> Decision:
    """Providers begin to work when their object has the Cluster as an owner, and its label."""
    named = [external for external in (scene.infrastructure, scene.control_plane) if external is not None]
    writes = tuple(patch for external in named for patch in _adoption(scene.cluster, external))
    return Decision(writes=(Parallel(writes),)) if writes else Decision()


def take_endpoint(scene: Scene) -> tuple[Patch, ...]:
    """Where the cluster's API is: from the provider that says so first, unless the user did."""
    if scene.endpoint.valid:
        return ()
    endpoint = _offered_endpoint(scene)
    if endpoint is None:
        return ()
    spec = {**scene.cluster["spec"], "controlPlaneEndpoint": {"host": endpoint.host, "port": endpoint.port}}
    return object_patch(CLUSTER, scene.cluster, {**scene.cluster, "spec": spec}, "the endpoint is known now")


def failure_domains(scene: Scene) -> list[Object]:
    known: list[Object] = scene.status("failureDomains", [])
    infrastructure = scene.infrastructure
    if infrastructure is None or infrastructure.obj is None or is_deleting(infrastructure.obj):
        return known
    return infra_cluster.failure_domains(infrastructure.obj, infrastructure.contract) if scene.provisioned else known


def wait(scene: Scene) -> Wait | None:
    """The first of the referenced objects that keeps the Cluster from being complete."""
    if scene.infrastructure is not None and not scene.provisioned:
        return _waits_for(scene, scene.infrastructure, "infrastructureRef", "to be provisioned")
    if scene.control_plane is not None and not scene.initialized:
        return _waits_for(scene, scene.control_plane, "controlPlaneRef", "to be initialized")
    return None


def references_of(cluster: Object) -> Iterator[str]:
    """Indexer: the objects that a Cluster names, whoever owns them."""
    for reference in _named(cluster):
        namespace = cluster["metadata"].get("namespace", "")
        yield f"{reference_group(reference)}/{reference['kind']}/{namespace}/{reference['name']}"


def reference_to(obj: Object) -> Iterator[str]:
    """The value under which the Clusters are indexed that name this object."""
    group = obj["apiVersion"].rpartition("/")[0]
    yield f"{group}/{obj['kind']}/{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def definitions_of(cluster: Object) -> Iterator[str]:
    """Indexer: the definitions of the kinds that a Cluster names."""
    for reference in _named(cluster):
        yield definition_name(reference_group(reference), reference["kind"])


def _named(cluster: Object) -> Iterator[Object]:
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
    """Somebody may have made the Cluster the controller of it; that is as good."""
    wanted = owner_reference(CLUSTER, cluster, controller=False)
    owners = obj["metadata"].get("ownerReferences") or []
    return any(all(owner.get(field) == value for field, value in wanted.items()) for owner in owners)


def _offered_endpoint(scene: Scene) -> Endpoint | None:
    infrastructure, plane = scene.infrastructure, scene.control_plane
    offers = []
    if infrastructure is not None and infrastructure.obj is not None and scene.provisioned:
        offers.append(infra_cluster.endpoint(infrastructure.obj, infrastructure.contract))
    if plane is not None and plane.obj is not None and scene.initialized:
        offers.append(control_plane.endpoint(plane.obj, plane.contract))
    return next((offer for offer in offers if offer.valid), None)


def _waits_for(scene: Scene, external: External, field: str, state: str) -> Wait:
    reference = scene.cluster["spec"][field]
    name = f"{reference['kind']} {reference['name']}"
    if external.problem:
        return Wait(f"{name} cannot be read: {external.problem}")
    if external.kind is None:
        definition = definition_name(reference_group(reference), reference["kind"])
        return Wait(f"{name} does not exist, nor does its CustomResourceDefinition {definition}")
    on = Ref(external.kind, reference["name"], scene.cluster["metadata"]["namespace"])
    return Wait(f"{name} does not exist" if external.obj is None else f"waiting for {name} {state}", on)
