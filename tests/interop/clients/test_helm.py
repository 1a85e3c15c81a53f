"""The real helm runs the whole life cycle of a chart: three-way merges, hooks, tests, CRDs, release secrets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.interop.programs import run
from tests.support.api import Api
from tests.support.engines import Engine

pytestmark = pytest.mark.extended

CHART = Path(__file__).parent / "chart"


def succeeded(job: Any) -> Any:
    """The Job as its controller leaves it after its pod succeeded."""
    started = job["status"].get("startTime") or job["metadata"]["creationTimestamp"]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": started, "lastProbeTime": started}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    times = {"startTime": started, "completionTime": started}
    return job | {"status": {"succeeded": 1, "conditions": conditions} | times}


class Helm:
    def __init__(self, engine: Engine, api: Api, home: Path) -> None:
        self.engine = engine
        self.api = api
        self.home = home

    async def __call__(self, *arguments: str, check: bool = True) -> str:
        """Run helm without blocking the event loop, so that a test can do what helm waits for."""
        command_line = (*arguments, "--namespace", self.api.namespace)
        result = await asyncio.to_thread(run, self.engine, "helm", *command_line, home=self.home, check=check)
        return result.stdout + result.stderr

    async def json(self, *arguments: str) -> Any:
        done = await asyncio.to_thread(
            run, self.engine, "helm", *arguments, "--namespace", self.api.namespace, "-o", "json", home=self.home
        )
        return msgspec.json.decode(done.stdout)

    async def while_job_succeeds(self, job: str, *arguments: str) -> str:
        """Helm waits for the Job of a hook; no node would run it, so the test reports its success."""
        running = asyncio.create_task(self(*arguments))
        found = await self.api.until_object(self.api.at("batch/v1/jobs", job), lambda _: True)
        url = self.api.at("batch/v1/jobs", job, "status")
        while (answer := await self.api.put(url, succeeded(found))).status == 409:  # a controller was faster
            found = await self.api.read(url)
        answer.expect(200)
        return await running


@pytest.fixture
def helm(engine: Engine, api: Api, tmp_path: Path) -> Helm:
    return Helm(engine, api, tmp_path)


async def test_install_upgrade_test_rollback_uninstall(helm: Helm, api: Api) -> None:
    chart = str(CHART)
    config_map, gate = api.at("configmaps", "meadow-words"), api.at("pasture.example.com/v1/gates", "meadow")

    assert "hello from revision 1" in await helm("install", "meadow", chart)
    assert (await api.read(gate))["spec"] == {"open": True, "width": 3}, "the chart's own kind is served and defaulted"
    deployment = await api.read(api.at("apps/v1/deployments", "meadow"))
    assert deployment["metadata"]["annotations"]["meta.helm.sh/release-name"] == "meadow"
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"

    # Helm's three-way merge keeps changes of other clients, unless the chart changes the same field.
    await api.patch(config_map, {"metadata": {"labels": {"mine": "yes"}}, "data": {"message": "changed by hand"}})
    changes = ("--set", "message=good morning", "--set", "metrics=true")
    upgraded = await helm.while_job_succeeds("meadow-migrate", "upgrade", "meadow", chart, *changes)
    assert "good morning from revision 2" in upgraded
    found = await api.read(config_map)
    assert found["data"] == {"message": "good morning", "revision": "2"}
    assert found["metadata"]["labels"] == {"app": "meadow", "app.kubernetes.io/managed-by": "Helm", "mine": "yes"}
    service = await api.read(api.at("services", "meadow"))
    assert [port["name"] for port in service["spec"]["ports"]] == ["http", "metrics"]
    deployment = await api.read(api.at("apps/v1/deployments", "meadow"))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "MESSAGE", "value": "good morning"}]
    assert container["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]

    tested = await helm.while_job_succeeds("meadow-check", "test", "meadow")
    assert "Phase:          Succeeded" in tested

    assert "Rollback was a success" in await helm("rollback", "meadow", "1")
    assert (await api.read(config_map))["data"] == {"message": "hello", "revision": "1"}
    service = await api.read(api.at("services", "meadow"))
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]

    history = await helm.json("history", "meadow")
    assert [(entry["revision"], entry["status"]) for entry in history] == [
        (1, "superseded"),
        (2, "superseded"),
        (3, "deployed"),
    ]
    (release,) = await helm.json("list")
    assert (release["name"], release["revision"], release["chart"]) == ("meadow", "3", "pasture-1.0.0")
    assert await helm.json("get", "values", "meadow", "--revision", "2") == {"message": "good morning", "metrics": True}
    assert "kind: Gate" in await helm("get", "manifest", "meadow")
    stored = await api.read(api.at("secrets") + "?labelSelector=owner%3Dhelm&fieldSelector=type%3Dhelm.sh%2Frelease.v1")
    assert [item["metadata"]["labels"]["version"] for item in stored["items"]] == ["1", "2", "3"]

    assert 'release "meadow" uninstalled' in await helm("uninstall", "meadow", "--wait")
    for path in (config_map, gate, api.at("services", "meadow"), api.at("apps/v1/deployments", "meadow")):
        assert (await api.get(path)).status == 404
    assert await helm.json("list", "--all") == []


async def test_a_rejected_chart_fails_with_the_servers_message(helm: Helm, api: Api) -> None:
    refused = await helm("install", "bad", str(CHART), "--set", "replicas=-1", check=False)
    assert 'Deployment.apps "bad" is invalid: spec.replicas: Invalid value: -1' in refused
    unknown = await helm("install", "worse", str(CHART), "--set", "replicas=many", check=False)
    assert "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32" in unknown
