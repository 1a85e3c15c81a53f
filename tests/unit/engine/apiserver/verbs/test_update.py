from __future__ import annotations

import asyncio
import os
from pathlib import Path

from herder.engine.apiserver.build import assemble
from herder.engine.store import Key
from tests.unit.engine.apiserver.api import MERGE, Api, Clock, config_map


async def created_object(api: Api, name: str = "a", **data: str) -> dict:
    return (await api.post(api.path("configmaps"), config_map(name, **data))).body


async def test_an_update_replaces_the_object_and_its_resource_version(api: Api) -> None:
    obj = await created_object(api, x="1")
    changed = await api.put(api.path("configmaps", "a"), obj | {"data": {"y": "2"}})
    assert (changed.status, changed.body["data"]) == (200, {"y": "2"})
    assert int(changed.body["metadata"]["resourceVersion"]) > int(obj["metadata"]["resourceVersion"])
    assert changed.body["metadata"]["uid"] == obj["metadata"]["uid"]


async def test_a_noop_update_writes_nothing(api: Api) -> None:
    obj = await created_object(api, x="1")
    api.clock.advance(60)
    same = await api.put(api.path("configmaps", "a"), obj)
    assert same.body == obj


async def test_an_update_with_an_old_resource_version_conflicts(api: Api) -> None:
    obj = await created_object(api, x="1")
    await api.put(api.path("configmaps", "a"), obj | {"data": {"x": "2"}})
    rejected = await api.put(api.path("configmaps", "a"), obj | {"data": {"x": "3"}})
    assert (rejected.status, rejected.reason) == (409, "Conflict")
    assert rejected.message.endswith("please apply your changes to the latest version and try again")


async def test_a_rejected_client_can_read_the_conflicting_object(tmp_path: Path) -> None:
    """This holds even if the conflicting change is not committed yet when the client writes."""
    clock = Clock()
    server = await assemble(tmp_path, clock=clock, entropy=os.urandom)
    try:
        api = Api(server, clock)
        obj = await created_object(api, x="1")
        winning = asyncio.ensure_future(api.put(api.path("configmaps", "a"), obj | {"data": {"x": "2"}}))
        store, key = server.deps.store, Key("configmaps", "default", "a")
        while store.latest(key) is store.get(key):
            await asyncio.sleep(0)
        rejected = await api.put(api.path("configmaps", "a"), obj | {"data": {"x": "3"}})
        assert (rejected.status, store.latest(key)) == (409, store.get(key))
        assert (await winning).status == 200
    finally:
        await server.stop()


async def test_an_update_without_a_resource_version_overwrites(api: Api) -> None:
    await created_object(api, x="1")
    changed = await api.put(api.path("configmaps", "a"), config_map("a", x="9"))
    assert (changed.status, changed.body["data"]) == (200, {"x": "9"})


async def test_some_kinds_require_a_resource_version(api: Api) -> None:
    url = api.path("leases", group="coordination.k8s.io")
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}
    await api.post(url, lease)
    rejected = await api.put(f"{url}/l", lease)
    assert (rejected.status, rejected.reason) == (422, "Invalid")
    assert "metadata.resourceVersion: Invalid value: 0: must be specified for an update" in rejected.message


async def test_a_missing_object_is_not_created_unless_its_kind_allows_it(api: Api) -> None:
    assert (await api.put(api.path("configmaps", "none"), config_map("none"))).status == 404
    url = api.path("leases", "l", group="coordination.k8s.io")
    created = await api.put(url, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}})
    assert created.status == 201


async def test_an_update_with_another_uid_conflicts(api: Api) -> None:
    await created_object(api)
    rejected = await api.put(api.path("configmaps", "a"), {"metadata": {"name": "a", "uid": "other"}})
    assert (rejected.status, rejected.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: other" in rejected.message


async def test_the_name_must_match_the_url(api: Api) -> None:
    await created_object(api)
    url = api.path("configmaps", "a")
    assert (
        await api.put(url, config_map("b"))
    ).message == "the name of the object (b) does not match the name on the URL (a)"
    assert "name must be provided" in (await api.put(url, {"metadata": {}})).message


async def test_server_owned_fields_survive_an_update(api: Api) -> None:
    obj = await created_object(api)
    sent = config_map("a", x="1")
    sent["metadata"] |= {"creationTimestamp": "2001-01-01T00:00:00Z"}
    changed = await api.put(api.path("configmaps", "a"), sent)
    for name in ("uid", "creationTimestamp"):
        assert changed.body["metadata"][name] == obj["metadata"][name]


async def test_a_dry_run_does_not_store(api: Api) -> None:
    obj = await created_object(api, x="1")
    url = api.path("configmaps", "a")
    dry = await api.put(f"{url}?dryRun=All", config_map("a", x="2"))
    assert dry.body["data"] == {"x": "2"}
    assert (await api.get(url)).body == obj


async def test_status_and_spec_have_separate_endpoints(api: Api, widgets: str) -> None:
    red = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"color": "red"}}
    widget = (await api.post(widgets, red)).body
    both = widget | {"spec": {"color": "blue"}, "status": {"replicas": 3}}
    changed = (await api.put(f"{widgets}/w/status", both)).body
    assert (changed["spec"]["color"], changed["status"], changed["metadata"]["generation"]) == (
        "red",
        {"replicas": 3},
        1,
    )
    both["metadata"] = changed["metadata"]
    changed = (await api.put(f"{widgets}/w", both | {"status": {"replicas": 9}})).body
    assert (changed["spec"]["color"], changed["status"], changed["metadata"]["generation"]) == (
        "blue",
        {"replicas": 3},
        2,
    )
    labelled = await api.patch(f"{widgets}/w", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.body["metadata"]["generation"] == 2


async def test_another_version_of_a_kind_is_the_same_object(api: Api, widgets: str) -> None:
    await api.post(widgets, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}})
    newer = widgets.replace("/v1/", "/v2/")
    seen = await api.get(f"{newer}/w")
    assert seen.body["apiVersion"] == "example.com/v2"
    changed = await api.put(f"{newer}/w", seen.body | {"spec": {"replicas": 4}})
    assert (changed.status, changed.body["apiVersion"]) == (200, "example.com/v2")
    assert (await api.get(f"{widgets}/w")).body["spec"] == {"replicas": 4}
    listed = (await api.get(newer)).body
    assert [item["apiVersion"] for item in listed["items"]] == ["example.com/v2"]


async def test_concurrent_patches_without_a_resource_version_are_all_applied(api: Api) -> None:
    await created_object(api)
    url = api.path("configmaps", "a")
    await asyncio.gather(*(api.patch(url, {"data": {f"k{n}": "v"}}, MERGE) for n in range(20)))
    assert len((await api.get(url)).body["data"]) == 20
