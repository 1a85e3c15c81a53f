"""Upstream Cluster API's core manager works on the embedded server.

It is what controller-runtime programs need at once: definitions of several versions with conversion by webhook,
admission webhooks, caches filled by watches, status patches, owner references.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.upstream import CONTRACT, CORE, UpstreamManager, install_definition

GROUP = "cluster.x-k8s.io/v1beta2"
OURS = "pasture.example.com"
PROVIDED = ("Paddock", "Ewe", "EweTemplate", "Whistle", "WhistleTemplate")


@pytest.fixture(scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Api, UpstreamManager]]:
    """A server of its own: the webhooks would stay behind on a shared one, with nobody to answer them."""
    with Embedded(tmp_path_factory.mktemp("embedded")) as server:
        engine = Engine("embedded", server.kubeconfig)
        api = Api(engine.connection)
        manager = UpstreamManager(CORE, engine, tmp_path_factory.mktemp("manager"))
        try:
            await manager.install(api)
            for kind in PROVIDED:
                await install_definition(api, _provider_definition(kind))
            await manager.start()
            yield api, manager
        finally:
            status = manager.stop()
            await api.close()
    assert status == 0


@pytest.fixture
async def api(started: tuple[Api, UpstreamManager]) -> Api:
    return await started[0].in_new_namespace()


def _provider_definition(kind: str) -> Any:
    """An infrastructure or bootstrap provider's kind, with as much as the contract asks for."""
    plural = kind.lower() + "s"
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": free, "status": free}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{OURS}", "labels": dict.fromkeys(CONTRACT, "v1")},
        "spec": {
            "group": OURS,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        },
    }


def reference(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": OURS, "kind": kind, "name": name}


async def make(api: Api, kind: str, name: str, spec: Any) -> Any:
    group = OURS + "/v1" if kind in PROVIDED else GROUP
    body = {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return await api.create(f"{group}/{kind.lower()}s", body)


async def make_cluster(api: Api, **spec: Any) -> None:
    await make(api, "Cluster", "flock", {"infrastructureRef": reference("Paddock", "flock")} | spec)


def owners(obj: Any) -> list[str]:
    return [owner["kind"] for owner in obj["metadata"].get("ownerReferences") or ()]


def conditions(obj: Any) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in (obj.get("status") or {}).get("conditions") or ()}


async def test_a_cluster_without_infrastructure_is_taken_in_hand(api: Api) -> None:
    url = api.at(f"{GROUP}/clusters", "flock")
    await make_cluster(api)
    found = await api.until_object(
        url, lambda obj: (obj.get("status") or {}).get("phase") == "Provisioning" and len(conditions(obj)) > 10
    )
    assert found["metadata"]["finalizers"] == ["cluster.cluster.x-k8s.io"]
    told = conditions(found)
    assert {"Available", "InfrastructureReady", "ControlPlaneAvailable", "WorkersAvailable", "Paused"} <= told.keys()
    assert told["Available"] == "False"
    assert told["Paused"] == "False"


async def test_an_older_version_is_read_and_written_through_the_conversion_webhook(api: Api) -> None:
    await make_cluster(api)
    old = "cluster.x-k8s.io/v1beta1/clusters"
    answer = await api.get(api.at(old, "flock"))
    found = answer.expect(200)
    assert found["apiVersion"] == "cluster.x-k8s.io/v1beta1"
    assert found["spec"]["infrastructureRef"] == {
        "apiVersion": f"{OURS}/v1",
        "kind": "Paddock",
        "name": "flock",
        "namespace": api.namespace,
    }
    assert ["deprecated" in warning for warning in answer.warnings] == [True]

    (await api.patch(api.at(old, "flock"), {"spec": {"paused": True}})).expect(200)
    assert (await api.read(api.at(f"{GROUP}/clusters", "flock")))["spec"]["paused"] is True
    listed = await api.read(api.at(old))
    assert [item["spec"]["paused"] for item in listed["items"]] == [True]
    async with api.watch(api.at(old)) as events:
        assert (await events.next())["object"]["apiVersion"] == "cluster.x-k8s.io/v1beta1"


async def test_its_webhooks_default_and_refuse(api: Api) -> None:
    machines = {"clusterName": "none", "template": {"spec": _machine("none")}}
    made = await make(api, "MachineDeployment", "herd", machines)
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["selector"]["matchLabels"] == {
        "cluster.x-k8s.io/cluster-name": "none",
        "cluster.x-k8s.io/deployment-name": "herd",
    }
    await make_cluster(api)
    moved = {"spec": {"infrastructureRef": {"kind": "ewe?"}}}
    refused = await api.patch(api.at(f"{GROUP}/clusters", "flock"), moved)
    assert (refused.status, refused.reason) == (422, "Invalid")
    bad = made | {
        "metadata": {"name": "bad"},
        "spec": made["spec"] | {"selector": {"matchLabels": {"not": "matching"}}},
    }
    refused = await api.post(api.at(f"{GROUP}/machinedeployments"), bad)
    assert refused.reason == "Invalid"
    assert 'admission webhook "validation.machinedeployment.cluster.x-k8s.io" denied the request' in refused.message


def _machine(cluster_name: str) -> Any:
    return {
        "clusterName": cluster_name,
        "bootstrap": {"configRef": reference("WhistleTemplate", "whistle")},
        "infrastructureRef": reference("EweTemplate", "ewe"),
    }


async def test_a_machine_deployment_becomes_machines(api: Api) -> None:
    """The test stands in for the two providers: it says that what they were asked for is there."""
    await make(api, "Paddock", "flock", {})
    for kind, name in (("EweTemplate", "ewe"), ("WhistleTemplate", "whistle")):
        await make(api, kind, name, {"template": {"spec": {"breed": "merino"}}})
    endpoint = {"host": "127.0.0.1", "port": 9}
    await make_cluster(api, controlPlaneEndpoint=endpoint)
    await _report(api, "paddocks", "flock", {"initialization": {"provisioned": True}})
    await api.until_object(
        api.at(f"{GROUP}/clusters", "flock"), lambda obj: conditions(obj).get("InfrastructureReady") == "True"
    )

    spec = {"clusterName": "flock", "replicas": 2, "template": {"spec": _machine("flock")}}
    await make(api, "MachineDeployment", "herd", spec)
    url = api.at(f"{GROUP}/machinedeployments", "herd")
    await api.until_object(url, lambda obj: (obj.get("status") or {}).get("replicas") == 2)
    (machine_set,) = (await api.read(api.at(f"{GROUP}/machinesets")))["items"]
    machines = (await api.read(api.at(f"{GROUP}/machines")))["items"]
    assert {machine["metadata"]["ownerReferences"][0]["uid"] for machine in machines} == {
        machine_set["metadata"]["uid"]
    }

    machine = machines[0]["metadata"]["name"]
    await api.create("secrets", {"metadata": {"name": "data"}, "stringData": {"value": "#!"}})
    cloned = await api.until_object(api.at(f"{OURS}/v1/ewes", machine), lambda obj: owners(obj) == ["Machine"])
    assert cloned["spec"]["breed"] == "merino"
    await _report(api, "whistles", machine, {"dataSecretName": "data", "initialization": {"dataSecretCreated": True}})
    await api.patch(api.at(f"{OURS}/v1/ewes", machine), {"spec": {"providerID": "ewe://1"}})
    await _report(api, "ewes", machine, {"initialization": {"provisioned": True}})
    url = api.at(f"{GROUP}/machines", machine)
    ready = await api.until_object(url, lambda obj: (obj.get("status") or {}).get("phase") == "Provisioned")
    assert ready["spec"]["providerID"] == "ewe://1"
    assert ready["spec"]["bootstrap"]["dataSecretName"] == "data"


async def _report(api: Api, plural: str, name: str, status: Any) -> None:
    (await api.patch(api.at(f"{OURS}/v1/{plural}", name, "status"), {"status": status})).expect(200)


async def test_deletion_runs_through_finalizers_to_the_end(api: Api) -> None:
    await make(api, "Paddock", "flock", {})
    url = api.at(f"{GROUP}/clusters", "flock")
    await make_cluster(api)
    await api.until_object(api.at(f"{OURS}/v1/paddocks", "flock"), lambda obj: owners(obj) == ["Cluster"])
    (await api.delete(url)).expect(200)
    await api.gone(url)
    assert (await api.get(api.at(f"{OURS}/v1/paddocks", "flock"))).status == 404


async def test_its_caches_have_no_trouble_with_the_server(started: tuple[Api, UpstreamManager]) -> None:
    _, manager = started
    assert [line for line in manager.log().splitlines() if "reflector" in line and line.startswith(("E", "W"))] == []
