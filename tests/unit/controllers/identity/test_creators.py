"""Whoever made a cluster becomes its owner, once."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import NAMESPACE
from herder.api.identity.creators import CREATOR_BOUND, creator_binding
from herder.api.machines.credentials import CREATOR
from herder.api.management.kinds import MANAGEMENT_CLUSTER
from herder.controllers.identity.creators import CONTROLLER, reconcile
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Patch
from tests.support.views import view_of

NOBODYS: Object = {"apiVersion": NAMESPACE.api_version, "kind": "Namespace", "metadata": {"name": "c-m-1"}}
_OWN = {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "name": "c-m-1", "uid": "Cluster-c-m-1"}
_EARLIER = {**_OWN, "uid": "of-the-earlier"}
HOME: Object = {**NOBODYS, "metadata": {"name": "c-m-1", "ownerReferences": [_OWN]}}
ANOTHERS: Object = {**NOBODYS, "metadata": {"name": "c-m-1", "ownerReferences": [_EARLIER]}}


def cluster(spec: Object | None = None, **annotations: str) -> Object:
    meta = {"name": "c-m-1", "annotations": annotations}
    return {"apiVersion": MANAGEMENT_CLUSTER.api_version, "kind": "Cluster", "metadata": meta, "spec": spec or {}}


def test_its_creator_is_bound_as_owner_and_that_is_remembered() -> None:
    create, patch = reconcile(view_of(CONTROLLER, "/c-m-1", [cluster(**{CREATOR: "alice"}), HOME])).writes
    assert isinstance(create, Create)
    assert isinstance(patch, Patch)
    assert create.obj == creator_binding("c-m-1", "alice")
    assert patch.patch == {"metadata": {"annotations": {CREATOR_BOUND: "true"}}}


def test_where_only_the_memory_failed_no_second_binding_is_made() -> None:
    objects = [cluster(**{CREATOR: "alice"}), HOME, creator_binding("c-m-1", "alice")]
    (patch,) = reconcile(view_of(CONTROLLER, "/c-m-1", objects)).writes
    assert isinstance(patch, Patch)


@pytest.mark.parametrize(
    "objects",
    [
        [],
        [cluster(), HOME],
        [cluster(**{CREATOR: "alice"})],
        [cluster(**{CREATOR: "alice"}), ANOTHERS],
        [cluster(**{CREATOR: "alice"}), NOBODYS],
        [cluster(**{CREATOR: "alice", CREATOR_BOUND: "true"}), HOME],
        [cluster(**{CREATOR: "system:admin"}), HOME],
    ],
    ids=[
        "no cluster",
        "no creator",
        "no namespace yet",
        "an earlier cluster's namespace",
        "a namespace that was there before",
        "bound once, and lost since",
        "no user",
    ],
)
def test_nobody_is_bound(objects: list[Object]) -> None:
    assert reconcile(view_of(CONTROLLER, "/c-m-1", objects)).writes == ()


def test_nobody_is_bound_to_the_managers_own_cluster() -> None:
    own = cluster({"internal": True}, **{CREATOR: "alice"})
    home: Object = {**HOME, "metadata": {"name": "local"}}
    own["metadata"]["name"] = "local"
    assert reconcile(view_of(CONTROLLER, "/local", [own, home])).writes == ()
