"""What owners read of their clusters through the gateway: no name of theirs leads to objects of others."""

from __future__ import annotations

import posixpath
from typing import Any, cast

import msgspec
import pytest

from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, not_found
from herder.engine.meta.kinds import GroupResource
from herder.engine.wire import Query, Request, Response, User
from herder.gateway.admission.access import Access
from herder.gateway.cluster_objects import ClusterObjects

MANAGEMENT = "/apis/management.cattle.io/v3/clusters/c-own"
CLUSTERS = "/apis/provisioning.cattle.io/v1/namespaces/fleet-default/clusters"
MACHINES = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet-default/machines"
ARCHIVE = "/api/v1/namespaces/herder-archive/configmaps/fleet-default.theirs-log"
MARKS = {"machine.herder.io/namespace": "fleet-default", "machine.herder.io/name": "theirs"}
OBJECTS: dict[str, Any] = {
    MANAGEMENT: {
        "metadata": {
            "name": "c-own",
            "labels": {"cluster.x-k8s.io/cluster-name": "own"},
            "annotations": {"management.herder.io/provisioning-cluster": "fleet-default/own"},
        },
        "spec": {"fleetWorkspaceName": "fleet-default", "infrastructureRef": {"name": "theirs"}},
    },
    f"{CLUSTERS}/own": {
        "metadata": {"name": "own", "namespace": "fleet-default", "uid": "1"},
        "status": {"clusterName": "c-own"},
    },
    "/api/v1/namespaces/fleet-default/pods": {"metadata": {}, "items": []},
    ARCHIVE: {"metadata": {"name": "fleet-default.theirs-log", "annotations": MARKS}, "data": {"create.log": "theirs"}},
}


class Balancer:
    """An API server behind a proxy that resolves dot segments, as many do."""

    async def send(self, request: Request) -> Response:
        found = OBJECTS.get(posixpath.normpath(request.path))
        if found is None:
            error = not_found(GroupResource("", "any"), request.path)
            return Response(error.code, {"content-type": "application/json"}, msgspec.json.encode(error.to_status()))
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode(found))

    async def close(self) -> None:
        pass


class Owner:
    async def may_use(self, *_: object) -> bool:
        return True

    async def may(self, *_: object) -> bool:
        return True


async def test_a_machine_name_is_no_path_to_another_object() -> None:
    """The spec of a management Cluster is the owner's, and could name the machine of another user."""
    objects = ClusterObjects(Client(cast("Any", Balancer())), cast(Access, Owner()))
    name = "../../../../../management.cattle.io/v3/clusters/c-own"
    request = Request("GET", "/v3/clusters/c-own/logs", Query([("machine", name)]))
    with pytest.raises(BadRequest):
        await objects.handle(request, User("mallory"))
