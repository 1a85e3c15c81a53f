"""Upstream Cluster API's core manager runs on the embedded server.

It uses all that controller-runtime programs need: CRDs with several versions and conversion webhooks, admission
webhooks, caches filled by watches, status patches, owner references.
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
    """A separate server: on a shared one, the webhooks would remain after the manager stops."""
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
    """The CRD of an infrastructure or bootstrap provider, with what the contract requires."""
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


async def create_object(api: Api, kind: str, name: str, spec: Any) -> Any:
    group = OURS + "/v1" if kind in PROVIDED else GROUP
    body = {"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return await api.create(f"{group}/{kind.lower()}s", body)


async def create_cluster(api: Api, **spec: Any) -> None:
    await create_object(api, "Cluster", "flock", {"infrastructureRef": reference("Paddock", "flock")} | spec)


def owners(obj: Any) -> list[str]:
    return [owner["kind"] for owner in obj["metadata"].get("ownerReferences") or ()]


def conditions(obj: Any) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in (obj.get("status") or {}).get("conditions") or ()}


async def test_a_cluster_without_infrastructure_is_reconciled(api: Api) -> None:
    url = api.at(f"{GROUP}/clusters", "flock")
    await create_cluster(api)
    found = await api.until_object(
        url, lambda obj: (obj.get("status") or {}).get("phase") == "Provisioning" and len(conditions(obj)) > 10
    )
    assert found["metadata"]["finalizers"] == ["cluster.cluster.x-k8s.io"]
    reported = conditions(found)
    assert {
        "Available",
        "InfrastructureReady",
        "ControlPlaneAvailable",
        "WorkersAvailable",
        "Paused",
    } <= reported.keys()
    assert reported["Available"] == "False"
    assert reported["Paused"] == "False"


async def test_older_versions_are_converted_by_the_webhook(api: Api) -> None:
    await create_cluster(api)
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


async def test_webhooks_default_and_reject(api: Api) -> None:
    machines = {"clusterName": "none", "template": {"spec": _machine("none")}}
    created = await create_object(api, "MachineDeployment", "herd", machines)
    assert created["spec"]["replicas"] == 1
    assert created["spec"]["selector"]["matchLabels"] == {
        "cluster.x-k8s.io/cluster-name": "none",
        "cluster.x-k8s.io/deployment-name": "herd",
    }
    await create_cluster(api)
    moved = {"spec": {"infrastructureRef": {"kind": "ewe?"}}}
    refused = await api.patch(api.at(f"{GROUP}/clusters", "flock"), moved)
    assert (refused.status, refused.reason) == (422, "Invalid")
    bad = created | {
        "metadata": {"name": "bad"},
        "spec": created["spec"] | {"selector": {"matchLabels": {"not": "matching"}}},
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
    """The test acts as both providers: it reports that their objects are provisioned."""
    await create_object(api, "Paddock", "flock", {})
    for kind, name in (("EweTemplate", "ewe"), ("WhistleTemplate", "whistle")):
        await create_object(api, kind, name, {"template": {"spec": {"breed": "merino"}}})
    endpoint = {"host": "127.0.0.1", "port": 9}
    await create_cluster(api, controlPlaneEndpoint=endpoint)
    await _report(api, "paddocks", "flock", {"initialization": {"provisioned": True}})
    await api.until_object(
        api.at(f"{GROUP}/clusters", "flock"), lambda obj: conditions(obj).get("InfrastructureReady") == "True"
    )

    spec = {"clusterName": "flock", "replicas": 2, "template": {"spec": _machine("flock")}}
    await create_object(api, "MachineDeployment", "herd", spec)
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


async def test_deletion_completes_through_finalizers(api: Api) -> None:
    await create_object(api, "Paddock", "flock", {})
    url = api.at(f"{GROUP}/clusters", "flock")
    await create_cluster(api)
    await api.until_object(api.at(f"{OURS}/v1/paddocks", "flock"), lambda obj: owners(obj) == ["Cluster"])
    (await api.delete(url)).expect(200)
    await api.until_gone(url)
    assert (await api.get(api.at(f"{OURS}/v1/paddocks", "flock"))).status == 404


async def test_its_informers_report_no_errors(started: tuple[Api, UpstreamManager]) -> None:
    _, manager = started
    assert [line for line in manager.log().splitlines() if "reflector" in line and line.startswith(("E", "W"))] == []
