"""The creator of a cluster becomes its owner, once."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.creators import CREATOR_BOUND, creator_binding
from herder.api.machines.credentials import CREATOR
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.controllers.identity.creators import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Patch
from tests.support.builders import new_object, owner_reference, reconcile

UNOWNED_NAMESPACE = new_object(NAMESPACE, "c-m-1")
_OWNER = owner_reference(MANAGEMENT_CLUSTER, "c-m-1", controller=False)
OWNED_NAMESPACE = new_object(NAMESPACE, "c-m-1", owners=[_OWNER])
FOREIGN_NAMESPACE = new_object(NAMESPACE, "c-m-1", owners=[{**_OWNER, "uid": "of-the-earlier"}])


def cluster(spec: Object | None = None, **annotations: str) -> Object:
    return new_object(MANAGEMENT_CLUSTER, "c-m-1", metadata={"annotations": annotations}, spec=spec or {})


def test_the_creator_of_a_cluster_is_bound_as_owner_once() -> None:
    create, patch = reconcile(CONTROLLER, "/c-m-1", cluster(**{CREATOR: "alice"}), OWNED_NAMESPACE).writes
    assert isinstance(create, Create)
    assert isinstance(patch, Patch)
    assert create.obj == creator_binding("c-m-1", "alice")
    assert patch.patch == {"metadata": {"annotations": {CREATOR_BOUND: "true"}}}


def test_no_second_binding_is_created_if_only_the_annotation_is_missing() -> None:
    objects = [cluster(**{CREATOR: "alice"}), OWNED_NAMESPACE, creator_binding("c-m-1", "alice")]
    (patch,) = reconcile(CONTROLLER, "/c-m-1", *objects).writes
    assert isinstance(patch, Patch)


@pytest.mark.parametrize(
    "objects",
    [
        [],
        [cluster(), OWNED_NAMESPACE],
        [cluster(**{CREATOR: "alice"})],
        [cluster(**{CREATOR: "alice"}), FOREIGN_NAMESPACE],
        [cluster(**{CREATOR: "alice"}), UNOWNED_NAMESPACE],
        [cluster(**{CREATOR: "alice", CREATOR_BOUND: "true"}), OWNED_NAMESPACE],
        [cluster(**{CREATOR: "system:admin"}), OWNED_NAMESPACE],
    ],
    ids=[
        "no cluster",
        "no creator",
        "no namespace yet",
        "the namespace of an earlier cluster",
        "a namespace that existed before",
        "bound once, and unbound since",
        "not a user",
    ],
)
def test_no_creator_is_bound(objects: list[Object]) -> None:
    assert reconcile(CONTROLLER, "/c-m-1", *objects).writes == ()


def test_no_creator_is_bound_to_the_local_cluster() -> None:
    local = cluster({"internal": True}, **{CREATOR: "alice"})
    namespace: Object = {**OWNED_NAMESPACE, "metadata": {"name": "local"}}
    local["metadata"]["name"] = "local"
    assert reconcile(CONTROLLER, "/local", local, namespace).writes == ()
