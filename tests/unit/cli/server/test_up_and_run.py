"""`herder up`, `herder run` and `herder store` as processes: lifecycle, data, and migration between servers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from herder.api.capi.inventory import NAMESPACE, PROVIDERS
from herder.engine.client import kubeconfig
from tests.support.api import Api
from tests.support.capi import HerderRun, webhook_flags
from tests.support.cloud.s3 import S3Server
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.kube import free_port
from tests.unit.cli.commands import expect_failure, herder, replica

SETTINGS = "management.cattle.io/v3/settings"
FLOCKS = "examples.herder.io/v1/flocks"
MUTATING, VALIDATING = (
    f"admissionregistration.k8s.io/v1/{kind}webhookconfigurations" for kind in ("mutating", "validating")
)
BUILT_IN_CORE = f"/apis/{PROVIDERS.api_version}/namespaces/{NAMESPACE}/providers/cluster-api"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("up"), flags=("--no-runner",)) as server:
        yield server


# --- herder up ------------------------------------------------------------------------------------------------------


def test_a_second_server_on_the_same_data_is_rejected(server: Embedded) -> None:
    message = expect_failure("up", "--data-dir", server.directory, "--listen", "127.0.0.1:0")
    assert "in use" in message or "another process" in message, message
    assert server.kubeconfig.exists(), "the kubeconfig of the first server is kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_cleanly(tmp_path: Path, number: int) -> None:
    server = Embedded(tmp_path, flags=("--example", "--no-runner")).start()
    assert server.process is not None
    server.process.send_signal(number)
    assert server.process.wait(20) == 0, server.log()
    assert server.log().rstrip().endswith("stopped")
    assert "Traceback" not in server.log()
    assert not server.kubeconfig.exists()


async def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    server = Embedded(tmp_path, flags=("--no-runner",)).start()
    api = Api(kubeconfig.load(server.kubeconfig))
    created = await api.create("configmaps", {"metadata": {"name": "kept"}, "data": {"x": "1"}})
    await api.close()
    server.kill()
    assert server.kubeconfig.exists()
    with Embedded(tmp_path, flags=("--no-runner",)) as restarted:
        api = Api(kubeconfig.load(restarted.kubeconfig))
        assert (await api.read(api.at("configmaps", "kept")))["metadata"]["uid"] == created["metadata"]["uid"]
        await api.close()


def test_logs_are_json_without_a_terminal(server: Embedded) -> None:
    lines = [line for line in server.log().splitlines() if line.startswith("{")]
    assert all({"time", "level", "event"} <= set(json.loads(line)) for line in lines)


async def test_a_server_with_a_node_does_not_load_aiohttp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take a seventh of the memory of an idle server, and only webhooks and log readers need it."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with Embedded(tmp_path) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until(api.cluster("nodes", "herder-runner"), lambda response: response.status == 200)
        await api.close()
        loaded = {line.rpartition("|")[2].strip() for line in server.log().splitlines() if "import time:" in line}
    assert "herder.engine.runner.kubelet" in loaded
    assert "aiohttp" not in loaded


# --- settings and metrics -------------------------------------------------------------------------------------------


async def test_setting_objects_are_validated(server: Embedded) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    url = api.cluster(SETTINGS, "history-retention")
    await api.until(url, lambda response: response.status == 200)
    assert (await api.read(url))["default"] == "24h"
    rejection = await api.patch(url, {"value": "soon"})
    assert (rejection.status, rejection.reason) == (422, "Invalid")
    assert rejection.message == (
        'Setting.management.cattle.io "history-retention" is invalid: '
        'value: Invalid value: "soon": must be a duration such as 30s, 15m, 12h or 7d'
    )
    assert rejection.causes[0][1] == "value"
    (await api.patch(url, {"value": "48h"})).expect(200)
    other = {"apiVersion": "management.cattle.io/v3", "kind": "Setting", "value": "anything"}
    await api.create_cluster(SETTINGS, other | {"metadata": {"name": "other"}})
    await api.close()


async def test_a_flag_overrides_the_setting_object_and_is_its_source(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text('runner-commands: "{}"\n')
    flags = ("--no-runner", "--set", "history-retention=1h", "--settings", str(file))
    with Embedded(tmp_path / "data", flags=flags) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        response = await api.until(api.cluster(SETTINGS, "history-retention"), lambda response: response.status == 200)
        assert response.body["source"] == "flag"
        await api.close()


async def test_metrics_need_authorization(server: Embedded) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    response = await api.until("/metrics", lambda response: response.status == 200)
    assert "process_resident_memory_bytes" in response.text
    assert (await api.as_user("nobody").get("/metrics")).status == 403
    assert (await api.as_user("scraper", "system:monitoring").get("/metrics")).status == 200
    await api.close()


# --- the API server and the controllers as separate processes -------------------------------------------------------


async def test_separate_controllers_run_under_leader_election(server: Embedded, tmp_path: Path) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    ports = [free_port(), free_port()]
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    lease = "/apis/coordination.k8s.io/v1/namespaces/herder-system/leases/herder-controllers"

    def leads(port: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
                return b'leader_election_master_status{name="herder"} 1.0' in response.read()
        except OSError:
            return False

    flags = ["--example", "--metrics-listen"]
    with replica(server.kubeconfig, logs[0], *flags, f"127.0.0.1:{ports[0]}") as one:
        await api.until(lease, lambda response: response.status == 200)
        with replica(server.kubeconfig, logs[1], *flags, f"127.0.0.1:{ports[1]}"):
            spec = {"size": 2, "message": "hello"}
            await api.create(FLOCKS, {"metadata": {"name": "f"}, "spec": spec} | type_meta("Flock"))
            await api.until_object(api.at(FLOCKS, "f"), lambda obj: (obj.get("status") or {}).get("phase") == "Ready")
            assert leads(ports[0])
            holder = (await api.read(lease))["spec"]["holderIdentity"]
            one.terminate()
            assert one.wait(30) == 0, logs[0].read_text()
            await api.until(lease, lambda response: response.body["spec"]["holderIdentity"] not in ("", holder))
            await api.delete(api.at(FLOCKS, "f"))
            await api.until_gone(api.at(FLOCKS, "f"))
            assert leads(ports[1])
    for log in logs:
        assert "Traceback" not in log.read_text()
    await api.close()


def type_meta(kind: str) -> dict[str, str]:
    return {"apiVersion": "examples.herder.io/v1", "kind": kind}


# --- backups --------------------------------------------------------------------------------------------------------


async def test_a_restored_backup_never_decreases_revisions(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    server = Embedded(data, flags=("--no-runner",)).start()
    api = Api(kubeconfig.load(server.kubeconfig))
    await api.create("configmaps", {"metadata": {"name": "before"}})
    await api.create("secrets", {"metadata": {"name": "s"}, "stringData": {"x": "hidden"}})
    result = herder("store", "backup", copy, "--data-dir", data)
    assert re.match(
        rf"Backed up revision \d+ to {re.escape(str(copy))}\nSHA-256: [0-9a-f]{{64}}; keep it ", result.stdout
    )
    assert b"hidden" not in copy.read_bytes()
    assert "already exists" in expect_failure("store", "backup", copy, "--data-dir", data)
    after = await api.create("configmaps", {"metadata": {"name": "after"}})
    message = expect_failure("store", "restore", copy, "--data-dir", data)
    assert "in use" in message or "another process" in message
    await api.close()
    assert server.stop() == 0
    restored = herder("store", "restore", copy, "--data-dir", data).stdout.splitlines()
    assert restored[0] == f"Restored {copy}; start the server with: herder up"
    assert restored[1].startswith("All clusters are observe-only then")
    with Embedded(data, flags=("--no-runner",)) as restarted:
        api = Api(kubeconfig.load(restarted.kubeconfig))
        listed = await api.read(api.at("configmaps"))
        assert {"before"} == {item["metadata"]["name"] for item in listed["items"]} - {"kube-root-ca.crt"}
        last = int(after["metadata"]["resourceVersion"])
        assert int(listed["metadata"]["resourceVersion"]) > last
        assert all(int(item["metadata"]["resourceVersion"]) > last for item in listed["items"])
        assert (await api.read(api.at("secrets", "s")))["data"] == {"x": "aGlkZGVu"}
        async with api.watch(f"{api.at('configmaps')}?resourceVersion={last}") as events:
            event = await events.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        await api.close()


def test_an_invalid_backup_is_rejected(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a database" * 1000)
    assert "file is not a database" in expect_failure("store", "restore", junk, "--data-dir", tmp_path / "data")


def test_a_backup_is_uploaded_to_s3(tmp_path: Path) -> None:
    data, copy, config = tmp_path / "data", tmp_path / "monday.db", tmp_path / "s3.json"
    Embedded(data, flags=("--no-runner",)).start().stop()
    with S3Server(tmp_path / "s3") as s3:
        for settings, message in (({"bucket": "nosuch"}, "the bucket does not exist"), ({}, "")):
            config.write_text(json.dumps(s3.settings(**settings)))
            config.chmod(0o600)
            arguments = ("store", "backup", copy, "--data-dir", data, "--s3-config", config)
            if message:
                assert message in expect_failure(*arguments)
                assert not copy.exists()
            else:
                assert herder(*arguments).stdout.endswith("Uploaded it to s3://snaps/farm/one/monday.db\n")
        assert s3.file("farm/one/monday.db").read_bytes() == copy.read_bytes()


# --- migration to a real cluster ------------------------------------------------------------------------------------


async def test_an_export_applies_to_a_real_cluster(tmp_path: Path, real_engine: Engine) -> None:
    namespace = f"moved-{free_port()}"
    with Embedded(tmp_path / "data", flags=("--example", "--no-runner")) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until("/apis/examples.herder.io/v1/flocks", lambda response: response.status == 200)
        await api.until(BUILT_IN_CORE, lambda response: response.status == 200)
        await api.create_cluster("namespaces", {"metadata": {"name": namespace, "labels": {"team": "a"}}})
        namespaced = api.in_namespace(namespace)
        await namespaced.create(
            FLOCKS, {"metadata": {"name": "f"}, "spec": {"size": 2, "message": "hello"}} | type_meta("Flock")
        )
        await namespaced.until_object(
            namespaced.at(FLOCKS, "f"), lambda obj: (obj.get("status") or {}).get("phase") == "Ready"
        )
        await namespaced.create("serviceaccounts", {"metadata": {"name": "worker"}})
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
        await namespaced.create("rbac.authorization.k8s.io/v1/roles", {"metadata": {"name": "reader"}, "rules": rules})
        ports = [{"port": 80, "targetPort": 8080}]
        await namespaced.create(
            "services", {"metadata": {"name": "web"}, "spec": {"ports": ports, "selector": {"a": "b"}}}
        )
        await namespaced.create("apps/v1/deployments", deployment("d"))
        exported = herder("export", "--kubeconfig", server.kubeconfig).stdout
        await api.close()
    documents = list(yaml.safe_load_all(exported))
    kinds = [document["kind"] for document in documents]
    assert kinds.index("Namespace") < kinds.index("CustomResourceDefinition") < kinds.index("ConfigMap")
    assert kinds.index("CustomResourceDefinition") < kinds.index("Flock")
    assert "Provider" not in kinds, "the inventory of providers is not exported"
    applied = apply_all(real_engine, exported)
    assert "flock.examples.herder.io/f serverside-applied" in applied
    real = Api(real_engine.connection, namespace=namespace)
    assert (await real.read(real.at(FLOCKS, "f")))["spec"]["message"] == "hello"
    assert (await real.read(real.at("configmaps", "f-0")))["data"] == {"message": "hello"}
    assert (await real.read(real.at("rbac.authorization.k8s.io/v1/roles", "reader")))["rules"] == rules
    assert (await real.read(real.at("services", "web")))["spec"]["ports"][0]["targetPort"] == 8080
    assert (await real.read(real.at("apps/v1/deployments", "d")))["spec"]["replicas"] == 0
    assert (await real.read(f"/api/v1/namespaces/{namespace}"))["metadata"]["labels"]["team"] == "a"
    assert apply_all(real_engine, exported), "applying it again succeeds"
    await real.close()


def deployment(name: str) -> dict[str, object]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def apply_all(engine: Engine, exported: str) -> str:
    """Apply as documented. Objects of kinds that the same stream defines need further attempts."""
    for _ in range(20):
        result: subprocess.CompletedProcess[str] = engine.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=exported, check=False
        )
        if result.returncode == 0:
            return result.stdout
        assert "no matches for kind" in result.stderr or "could not find the requested resource" in result.stderr, (
            result.stderr
        )
    raise AssertionError(result.stderr)


# --- Cluster API's core ---------------------------------------------------------------------------------------------


async def test_the_built_in_core_is_disabled_when_another_is_installed(tmp_path: Path) -> None:
    with Embedded(tmp_path, flags=("--no-runner", "--no-machines", "--capi-core=auto")) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until(BUILT_IN_CORE, lambda response: response.status == 200)
        deployments = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments"
        assert (await api.post(deployments, machine_deployment("before"))).expect(201)["spec"]["replicas"] == 1, (
            "the built-in rules apply"
        )

        await install_another_core(api)
        await api.until(BUILT_IN_CORE, lambda response: response.status == 404)
        assert "disabled the built-in Cluster API core" in server.log()
        assert "replicas" not in (await api.post(deployments, machine_deployment("after"))).expect(201)["spec"]
        await api.close()


async def test_a_disabled_core_removes_its_webhooks_but_not_those_of_machines(tmp_path: Path) -> None:
    with Embedded(tmp_path / "up", flags=("--no-runner", "--no-machines", "--capi-core=external")) as server:
        engine = Engine("embedded", server.kubeconfig)
        with HerderRun(engine, tmp_path / "run", "--capi-core=auto", "--machines", *webhook_flags()) as controllers:
            api = Api(engine.connection)
            await api.until(api.cluster(VALIDATING, "herder-machines"), lambda response: response.status == 200)
            await api.until(BUILT_IN_CORE, lambda response: response.status == 200)
            await install_another_core(api)
            for kind in (MUTATING, VALIDATING):
                await api.until(api.cluster(kind, "herder-cluster-api"), lambda response: response.status == 404)
            (await api.delete(api.cluster(VALIDATING, "herder-machines"))).expect(200)
            await api.until(api.cluster(VALIDATING, "herder-machines"), lambda response: response.status == 200)
            assert "disabled the built-in Cluster API core" in controllers.log()
            await api.close()


async def install_another_core(api: Api) -> None:
    await api.create_cluster("namespaces", {"metadata": {"name": "capi-system"}})
    provider = {"providerName": "cluster-api", "type": "CoreProvider", "version": "v1.13.4"}
    body = {"apiVersion": PROVIDERS.api_version, "kind": "Provider", "metadata": {"name": "cluster-api"}, **provider}
    (await api.post(f"/apis/{PROVIDERS.api_version}/namespaces/capi-system/providers", body)).expect(201)


def machine_deployment(name: str) -> Any:
    reference = {"apiGroup": "example.com", "kind": "ThingTemplate", "name": "x"}
    machine = {"clusterName": "none", "bootstrap": {"configRef": reference}, "infrastructureRef": reference}
    labels = {"herd": name}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineDeployment",
        "metadata": {"name": name},
        "spec": {
            "clusterName": "none",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": machine},
        },
    }
