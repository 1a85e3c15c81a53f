"""What owners read of their clusters through the gateway: no name of theirs leads to objects of others."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from herder.api.rke import cluster_spec, names
from herder.engine.client.client import Client
from herder.engine.meta.errors import BadRequest, Forbidden, NotFound, not_found
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Query, Request, Response, User
from herder.gateway.admission.access import Access
from herder.gateway.cluster_objects import ClusterObjects

MANAGEMENT = "/apis/management.cattle.io/v3/clusters/c-own"
CLUSTERS = "/apis/provisioning.cattle.io/v1/namespaces/fleet-default/clusters"
MACHINES = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet-default/machines"
ARCHIVE = "/api/v1/namespaces/herder-archive/configmaps/fleet-default.theirs-log"
MARKS = {
    "machine.herder.io/namespace": "fleet-default",
    "machine.herder.io/name": "theirs",
    "machine.herder.io/kind": "ProcessMachine",
}
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


@pytest.mark.parametrize(
    ("group", "kind", "shown"),
    [
        ("rke-machine.cattle.io", "ProcessMachine", "theirs\n"),
        ("rke-machine.cattle.io", "LocalMachine", ""),
        ("rke.cattle.io", "CustomMachine", ""),
        ("rke.cattle.io", "ProcessMachine", ""),
    ],
)
async def test_a_machine_shows_no_log_of_another_kind(
    monkeypatch: pytest.MonkeyPatch, group: str, kind: str, shown: str
) -> None:
    """Names of machines are unique for each kind only."""
    reference = {"apiGroup": group, "kind": kind, "name": "theirs"}
    machine = {"metadata": {"name": "m"}, "spec": {"clusterName": "own", "infrastructureRef": reference}}
    monkeypatch.setitem(OBJECTS, f"{MACHINES}/m", machine)
    monkeypatch.setitem(OBJECTS, "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet-default/clusters/own", CORE)
    objects = ClusterObjects(Client(cast("Any", Balancer())), cast(Access, Owner()))
    request = Request("GET", "/v3/clusters/c-own/logs", Query([("machine", "m")]))
    response = await objects.handle(request, User("mallory"))
    assert response is not None
    assert msgspec.json.decode(response.content())["log"] == shown


CORE: dict[str, Any] = {
    "metadata": {
        "name": "own",
        "namespace": "fleet-default",
        "uid": "core",
        "ownerReferences": [{"controller": True, "uid": "1"}],
    },
    "spec": {},
}
PAGES = 5


def _machine(number: int) -> dict[str, Any]:
    return {"metadata": {"name": f"m{number}", "uid": f"uid-m{number}", "managedFields": []}}


class PagedServer(Balancer):
    """Serves a cluster with several pages of one Machine each, and counts the pages that were requested."""

    def __init__(self) -> None:
        self.requested = 0

    async def send(self, request: Request) -> Response:
        *_, resource = request.path.split("/")
        if request.path == "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet-default/clusters/own":
            found: Any = CORE
        elif resource == "machines":
            self.requested += 1
            number = int(request.query.get("continue") or 0)
            left = {"continue": str(number + 1)} if number + 1 < PAGES else {}
            found = {"metadata": left, "items": [_machine(number)]}
        elif resource.startswith("machine"):
            found = {"metadata": {}, "items": []}
        else:
            return await super().send(request)
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode(found))


async def test_a_slow_reader_keeps_one_page_in_memory() -> None:
    """A cluster has up to 5,000 machines, and each of its members can send many requests."""
    server = PagedServer()
    objects = ClusterObjects(Client(cast("Any", server)), cast(Access, Owner()))
    response = await objects.handle(Request("GET", "/v3/clusters/c-own/objects", Query([])), User("member"))
    assert response is not None
    assert response.stream is not None
    pieces = aiter(response.stream)
    read = b""
    while b'"m0"' not in read:
        read += await anext(pieces)
    assert server.requested == 1
    read += b"".join([piece async for piece in pieces])
    found = [each["metadata"]["name"] for each in msgspec.json.decode(read)["items"]]
    assert found == ["own", "own", "m0", "m1", "m2", "m3", "m4"]
    assert b"managedFields" not in read


async def test_members_do_not_see_the_spec_before_the_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has values that owners may have removed since, such as a password in a variable of the agent."""
    marks = {names.PREVIOUS_SPEC: "cGFzc3dvcmQ=", names.CLUSTER_SPEC: "current"}
    monkeypatch.setitem(CORE, "metadata", {**CORE["metadata"], "annotations": marks})
    objects = ClusterObjects(Client(cast("Any", PagedServer())), cast(Access, Owner()))
    response = await objects.handle(Request("GET", "/v3/clusters/c-own/objects", Query([])), User("member"))
    assert response is not None
    assert response.stream is not None
    read = b"".join([piece async for piece in response.stream])
    assert b"cGFzc3dvcmQ=" not in read
    assert b"current" in read


def spec_with_pin(pin: int) -> Object:
    return {"clusterName": "own", "agentEnvVars": [{"name": "PROXY_PIN", "value": str(pin)}]}


@pytest.mark.parametrize("applied", [spec_with_pin(4321), {"clusterName": "own"}], ids=["earlier", "current"])
async def test_members_do_not_see_digests_of_earlier_specs(monkeypatch: pytest.MonkeyPatch, applied: Object) -> None:
    """Whoever knows the rest of the spec can guess a short value that was removed. The digest of the current spec tells
    clients whether all machines have it."""
    current = {"clusterName": "own"}
    status = {"phase": "Provisioned", "specHistory": ["0123abcd"], "appliedDigest": cluster_spec.digest(applied)}
    monkeypatch.setitem(CORE, "status", status)
    monkeypatch.setitem(CORE, "spec", current)
    objects = ClusterObjects(Client(cast("Any", PagedServer())), cast(Access, Owner()))
    response = await objects.handle(Request("GET", "/v3/clusters/c-own/objects", Query([])), User("member"))
    assert response is not None
    assert response.stream is not None
    read = b"".join([piece async for piece in response.stream])
    assert b"0123abcd" not in read
    assert b"Provisioned" in read
    assert not [pin for pin in range(4300, 4330) if cluster_spec.digest(spec_with_pin(pin)).encode() in read]
    assert (b"appliedDigest" in read) == (applied == current)


class FormerOwner(Owner):
    """Loses the rights, or the cluster to another user, while the response is being sent."""

    is_owner = True

    async def may(self, *_: object) -> bool:
        return self.is_owner


async def started(server: PagedServer, owner: Owner) -> AsyncIterator[bytes]:
    """A response of which the first Machine was sent."""
    objects = ClusterObjects(Client(cast("Any", server)), cast(Access, owner))
    response = await objects.handle(Request("GET", "/v3/clusters/c-own/objects", Query([])), User("member"))
    assert response is not None
    assert response.stream is not None
    pieces = aiter(response.stream)
    while b'"m0"' not in await anext(pieces):
        pass
    return pieces


async def test_a_slow_reader_gets_no_page_after_its_rights_have_ended() -> None:
    server, owner = PagedServer(), FormerOwner()
    pieces = await started(server, owner)
    owner.is_owner = False
    with pytest.raises(ConnectionAbortedError):
        await anext(pieces)
    assert server.requested == 1


async def test_a_slow_reader_gets_no_machines_of_a_later_cluster_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    server = PagedServer()
    pieces = await started(server, Owner())
    later = OBJECTS[f"{CLUSTERS}/own"]
    monkeypatch.setitem(OBJECTS, f"{CLUSTERS}/own", {**later, "metadata": {**later["metadata"], "uid": "2"}})
    with pytest.raises(ConnectionAbortedError):
        await anext(pieces)
    assert server.requested == 1


def snapshot(name: str, owner: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "fleet-default", "ownerReferences": [{"uid": owner}], "managedFields": []}
    return {"metadata": metadata, "snapshotFile": {"name": name, "metadata": "c2VjcmV0"}}


class SnapshotServer(PagedServer):
    """Serves snapshots of this cluster, and one of a former cluster of its name."""

    labels = ""

    async def send(self, request: Request) -> Response:
        if request.path != "/apis/rke.cattle.io/v1/namespaces/fleet-default/etcdsnapshots":
            return await super().send(request)
        self.labels = request.query.get("labelSelector") or ""
        items = [snapshot("of-cluster", "1"), snapshot("of-machine", "uid-m4"), snapshot("former", "2")]
        found = {"metadata": {}, "kind": "ETCDSnapshotList", "apiVersion": "rke.cattle.io/v1", "items": items}
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode(found))


async def test_snapshots_are_those_that_the_cluster_or_its_machines_own() -> None:
    """Labels outlive a cluster: the former one of the name may have been another user's."""
    server = SnapshotServer()
    objects = ClusterObjects(Client(cast("Any", server)), cast(Access, Owner()))
    response = await objects.handle(Request("GET", "/v3/clusters/c-own/objects", Query([])), User("member"))
    assert response is not None
    assert response.stream is not None
    read = b"".join([piece async for piece in response.stream])
    found = [each for each in msgspec.json.decode(read)["items"] if each.get("kind") == "ETCDSnapshot"]
    assert [each["metadata"]["name"] for each in found] == ["of-cluster", "of-machine"]
    assert server.labels == "rke.cattle.io/cluster-name=own"
    assert all(each["snapshotFile"] == {"name": each["metadata"]["name"]} for each in found)
    assert b"managedFields" not in read


class DeletionServer(PagedServer):
    """Serves one snapshot of each owner, and records deletions."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []

    async def send(self, request: Request) -> Response:
        name, kind = posixpath.basename(request.path), posixpath.basename(posixpath.dirname(request.path))
        if kind == "machines":
            machine = {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {"clusterName": OWNERS[name]}}
            return Response(200, {"content-type": "application/json"}, msgspec.json.encode(machine))
        if kind != "etcdsnapshots":
            return await super().send(request)
        if request.method == "DELETE":
            self.deleted.append(name)
        owner = {"kind": "Cluster", "name": "own", "uid": name}
        if name in OWNERS:
            owner = {"kind": "Machine", "name": name, "uid": "uid-m-later" if name == "m-former" else f"uid-{name}"}
        found = {"metadata": {"name": name, "uid": f"snapshot-{name}", "ownerReferences": [owner]}}
        return Response(200, {"content-type": "application/json"}, msgspec.json.encode(found))


OWNERS = {"m-own": "own", "m-theirs": "theirs", "m-former": "own"}
"""Clusters of the machines."""


@pytest.mark.parametrize(
    ("name", "is_own"), [("core", True), ("m-own", True), ("2", False), ("m-theirs", False), ("m-former", False)]
)
async def test_owners_delete_snapshots_of_their_own_cluster_only(name: str, is_own: bool) -> None:
    server = DeletionServer()
    objects = ClusterObjects(Client(cast("Any", server)), cast(Access, Owner()))
    request = Request("DELETE", f"/v3/clusters/c-own/snapshots/{name}", Query([]))
    if is_own:
        assert (await objects.handle(request, User("owner"))) is not None
    else:
        with pytest.raises(NotFound):
            await objects.handle(request, User("owner"))
    assert server.deleted == ([name] if is_own else [])


async def test_members_without_the_right_to_update_a_cluster_delete_no_snapshot() -> None:
    class Member(Owner):
        async def may(self, _user: User, verb: str, *_: object) -> bool:
            return verb == "get"

    server = DeletionServer()
    objects = ClusterObjects(Client(cast("Any", server)), cast(Access, Member()))
    with pytest.raises(Forbidden):
        await objects.handle(Request("DELETE", "/v3/clusters/c-own/snapshots/core", Query([])), User("member"))
    assert server.deleted == []


async def test_a_former_owner_who_created_a_cluster_sees_no_fields_of_its_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what its deletion waits for. Managed fields have names of variables that later owners have set."""

    class Creator(Owner):
        async def may(self, *_: object) -> bool:
            return False

    finalizers = {"f:finalizers": {'v:"x"': {}}}
    fields = [
        {"manager": "kubectl", "fieldsV1": {"f:metadata": {"f:annotations": {"f:secret": {}}}, "f:spec": {"f:y": {}}}},
        {"manager": "herder", "operation": "Update", "fieldsV1": {"f:metadata": finalizers, "f:status": {"f:z": {}}}},
    ]
    path = "/apis/provisioning.cattle.io/v1/namespaces/fleet-default/clusters/own"
    known = OBJECTS[path]
    meta = {**known["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "managedFields": fields}
    meta["annotations"] = {"field.cattle.io/creatorId": "u-creator"}
    monkeypatch.setitem(OBJECTS, path, {**known, "metadata": meta})
    objects = ClusterObjects(Client(Balancer()), Creator())  # type: ignore[arg-type]
    request = Request("GET", f"/v3/deletions/fleet-default/own/{meta['uid']}")
    response = await objects.handle(request, User("u-creator"))
    assert response is not None
    found = msgspec.json.decode(response.content())["metadata"]
    kept = {"manager": "herder", "operation": "Update", "fieldsV1": {"f:metadata": finalizers}}
    assert found["managedFields"] == [kept]
