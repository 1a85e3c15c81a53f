"""Servers and controllers as processes: their life, their data, and the way from one to the other."""

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
from tests.support.embedded import Embedded
from tests.support.engines import Engine
from tests.support.kube import free_port
from tests.unit.cli.commands import herder, refused, replica

SETTINGS = "management.cattle.io/v3/settings"
FLOCKS = "examples.herder.io/v1/flocks"
MUTATING, VALIDATING = (
    f"admissionregistration.k8s.io/v1/{kind}webhookconfigurations" for kind in ("mutating", "validating")
)
OUR_CORE = f"/apis/{PROVIDERS.api_version}/namespaces/{NAMESPACE}/providers/cluster-api"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("up"), flags=("--no-runner",)) as server:
        yield server


# --- herder up -----------------------------------------------------------------------------------------------------


def test_a_second_server_on_the_same_data_is_refused(server: Embedded) -> None:
    told = refused("up", "--data-dir", server.directory, "--listen", "127.0.0.1:0")
    assert "in use" in told or "another process" in told, told
    assert server.kubeconfig.exists(), "the first one's kubeconfig is left alone"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(tmp_path: Path, number: int) -> None:
    server = Embedded(tmp_path, flags=("--example", "--no-runner")).start()
    assert server.process is not None
    server.process.send_signal(number)
    assert server.process.wait(20) == 0, server.log()
    assert server.log().rstrip().endswith("stopped")
    assert "Traceback" not in server.log()
    assert not server.kubeconfig.exists()


async def test_what_is_acknowledged_survives_a_kill_and_a_stale_kubeconfig_is_replaced(tmp_path: Path) -> None:
    server = Embedded(tmp_path, flags=("--no-runner",)).start()
    api = Api(kubeconfig.load(server.kubeconfig))
    made = await api.create("configmaps", {"metadata": {"name": "kept"}, "data": {"x": "1"}})
    await api.close()
    server.kill()
    assert server.kubeconfig.exists()
    with Embedded(tmp_path, flags=("--no-runner",)) as again:
        api = Api(kubeconfig.load(again.kubeconfig))
        assert (await api.read(api.at("configmaps", "kept")))["metadata"]["uid"] == made["metadata"]["uid"]
        await api.close()


def test_logs_are_json_where_nobody_watches(server: Embedded) -> None:
    lines = [line for line in server.log().splitlines() if line.startswith("{")]
    assert all({"time", "level", "event"} <= set(json.loads(line)) for line in lines)


async def test_a_server_with_a_node_loads_no_http_client_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a seventh of the memory of an idle server, for what only webhooks and readers of logs need."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with Embedded(tmp_path) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until(api.cluster("nodes", "herder-runner"), lambda answer: answer.status == 200)
        await api.close()
        loaded = {line.rpartition("|")[2].strip() for line in server.log().splitlines() if "import time:" in line}
    assert "herder.engine.runner.kubelet" in loaded
    assert "aiohttp" not in loaded


# --- settings and metrics ------------------------------------------------------------------------------------------


async def test_settings_are_objects_whose_values_are_checked(server: Embedded) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    url = api.cluster(SETTINGS, "history-retention")
    await api.until(url, lambda answer: answer.status == 200)
    assert (await api.read(url))["default"] == "24h"
    refusal = await api.patch(url, {"value": "soon"})
    assert (refusal.status, refusal.reason) == (422, "Invalid")
    assert refusal.message == (
        'Setting.management.cattle.io "history-retention" is invalid: '
        'value: Invalid value: "soon": must be a duration such as 30s, 15m, 12h or 7d'
    )
    assert refusal.causes[0][1] == "value"
    (await api.patch(url, {"value": "48h"})).expect(200)
    other = {"apiVersion": "management.cattle.io/v3", "kind": "Setting", "value": "anything"}
    await api.create_cluster(SETTINGS, other | {"metadata": {"name": "somebody-elses"}})
    await api.close()


async def test_a_flag_wins_over_the_object_and_the_object_says_so(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text('runner-commands: "{}"\n')
    flags = ("--no-runner", "--set", "history-retention=1h", "--settings", str(file))
    with Embedded(tmp_path / "data", flags=flags) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        answer = await api.until(api.cluster(SETTINGS, "history-retention"), lambda answer: answer.status == 200)
        assert answer.body["source"] == "flag"
        await api.close()


async def test_metrics_are_served_to_those_who_may_read_them(server: Embedded) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    answer = await api.until("/metrics", lambda answer: answer.status == 200)
    assert "process_resident_memory_bytes" in answer.text
    assert (await api.as_user("nobody").get("/metrics")).status == 403
    assert (await api.as_user("scraper", "system:monitoring").get("/metrics")).status == 200
    await api.close()


# --- the API server and the controllers as separate processes ------------------------------------------------------


async def test_controllers_run_beside_the_server_one_at_a_time(server: Embedded, tmp_path: Path) -> None:
    api = Api(kubeconfig.load(server.kubeconfig))
    ports = [free_port(), free_port()]
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    lease = "/apis/coordination.k8s.io/v1/namespaces/herder-system/leases/herder-controllers"

    def leads(port: int) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return b'leader_election_master_status{name="herder"} 1.0' in answer.read()
        except OSError:
            return False

    flags = ["--example", "--metrics-listen"]
    with replica(server.kubeconfig, logs[0], *flags, f"127.0.0.1:{ports[0]}") as one:
        await api.until(lease, lambda answer: answer.status == 200)
        with replica(server.kubeconfig, logs[1], *flags, f"127.0.0.1:{ports[1]}"):
            spec = {"size": 2, "message": "hello"}
            await api.create(FLOCKS, {"metadata": {"name": "f"}, "spec": spec} | typed("Flock"))
            await api.until_object(api.at(FLOCKS, "f"), lambda obj: (obj.get("status") or {}).get("phase") == "Ready")
            assert leads(ports[0])
            holder = (await api.read(lease))["spec"]["holderIdentity"]
            one.terminate()
            assert one.wait(30) == 0, logs[0].read_text()
            await api.until(lease, lambda answer: answer.body["spec"]["holderIdentity"] not in ("", holder))
            await api.delete(api.at(FLOCKS, "f"))
            await api.gone(api.at(FLOCKS, "f"))
            assert leads(ports[1])
    for log in logs:
        assert "Traceback" not in log.read_text()
    await api.close()


def typed(kind: str) -> dict[str, str]:
    return {"apiVersion": "examples.herder.io/v1", "kind": kind}


# --- backups -------------------------------------------------------------------------------------------------------


async def test_a_backup_of_a_running_server_is_restored_and_revisions_never_go_back(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    server = Embedded(data, flags=("--no-runner",)).start()
    api = Api(kubeconfig.load(server.kubeconfig))
    await api.create("configmaps", {"metadata": {"name": "before"}})
    await api.create("secrets", {"metadata": {"name": "s"}, "stringData": {"x": "hidden"}})
    done = herder("store", "backup", copy, "--data-dir", data)
    assert re.fullmatch(rf"Backed up revision \d+ to {re.escape(str(copy))}\n", done.stdout)
    assert b"hidden" not in copy.read_bytes()
    assert "already exists" in refused("store", "backup", copy, "--data-dir", data)
    after = await api.create("configmaps", {"metadata": {"name": "after"}})
    told = refused("store", "restore", copy, "--data-dir", data)
    assert "in use" in told or "another process" in told
    await api.close()
    assert server.stop() == 0
    restored = f"Restored {copy}; start the server with: herder up\n"
    assert herder("store", "restore", copy, "--data-dir", data).stdout == restored
    with Embedded(data, flags=("--no-runner",)) as again:
        api = Api(kubeconfig.load(again.kubeconfig))
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


def test_what_is_not_a_backup_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"not a database" * 1000)
    assert "file is not a database" in refused("store", "restore", junk, "--data-dir", tmp_path / "data")


# --- leaving for a real cluster ------------------------------------------------------------------------------------


async def test_what_is_exported_applies_to_a_real_cluster(tmp_path: Path, real_engine: Engine) -> None:
    space = f"moved-{free_port()}"
    with Embedded(tmp_path / "data", flags=("--example", "--no-runner")) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until("/apis/examples.herder.io/v1/flocks", lambda answer: answer.status == 200)
        await api.until(OUR_CORE, lambda answer: answer.status == 200)
        await api.create_cluster("namespaces", {"metadata": {"name": space, "labels": {"team": "a"}}})
        here = api.within(space)
        await here.create(FLOCKS, {"metadata": {"name": "f"}, "spec": {"size": 2, "message": "hello"}} | typed("Flock"))
        await here.until_object(here.at(FLOCKS, "f"), lambda obj: (obj.get("status") or {}).get("phase") == "Ready")
        await here.create("serviceaccounts", {"metadata": {"name": "worker"}})
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
        await here.create("rbac.authorization.k8s.io/v1/roles", {"metadata": {"name": "reader"}, "rules": rules})
        ports = [{"port": 80, "targetPort": 8080}]
        await here.create("services", {"metadata": {"name": "web"}, "spec": {"ports": ports, "selector": {"a": "b"}}})
        await here.create("apps/v1/deployments", deployment("d"))
        exported = herder("export", "--kubeconfig", server.kubeconfig).stdout
        await api.close()
    documents = list(yaml.safe_load_all(exported))
    kinds = [document["kind"] for document in documents]
    assert kinds.index("Namespace") < kinds.index("CustomResourceDefinition") < kinds.index("ConfigMap")
    assert kinds.index("CustomResourceDefinition") < kinds.index("Flock")
    assert "Provider" not in kinds, "what of ours runs there is not what runs here"
    applied = apply_all(real_engine, exported)
    assert "flock.examples.herder.io/f serverside-applied" in applied
    real = Api(real_engine.connection, namespace=space)
    assert (await real.read(real.at(FLOCKS, "f")))["spec"]["message"] == "hello"
    assert (await real.read(real.at("configmaps", "f-0")))["data"] == {"message": "hello"}
    assert (await real.read(real.at("rbac.authorization.k8s.io/v1/roles", "reader")))["rules"] == rules
    assert (await real.read(real.at("services", "web")))["spec"]["ports"][0]["targetPort"] == 8080
    assert (await real.read(real.at("apps/v1/deployments", "d")))["spec"]["replicas"] == 0
    assert (await real.read(f"/api/v1/namespaces/{space}"))["metadata"]["labels"]["team"] == "a"
    assert apply_all(real_engine, exported), "and once more, which changes nothing"
    await real.close()


def deployment(name: str) -> dict[str, object]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }


def apply_all(engine: Engine, exported: str) -> str:
    """As the page says. Objects of kinds that are defined in the same stream need a second look at them."""
    for _ in range(20):
        done: subprocess.CompletedProcess[str] = engine.kubectl(
            "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=exported, check=False
        )
        if done.returncode == 0:
            return done.stdout
        assert "no matches for kind" in done.stderr or "could not find the requested resource" in done.stderr, (
            done.stderr
        )
    raise AssertionError(done.stderr)


# --- Cluster API's core ---------------------------------------------------------------------------------------------


async def test_our_core_stands_aside_when_another_is_installed_later(tmp_path: Path) -> None:
    with Embedded(tmp_path, flags=("--no-runner", "--no-machines", "--capi-core=auto")) as server:
        api = Api(kubeconfig.load(server.kubeconfig))
        await api.until(OUR_CORE, lambda answer: answer.status == 200)
        sets = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/machinedeployments"
        assert (await api.post(sets, machine_deployment("before"))).expect(201)["spec"]["replicas"] == 1, (
            "our rules are in force"
        )

        await install_another_core(api)
        await api.until(OUR_CORE, lambda answer: answer.status == 404)
        assert "disabled the built-in Cluster API core" in server.log()
        assert "replicas" not in (await api.post(sets, machine_deployment("after"))).expect(201)["spec"]
        await api.close()


async def test_when_the_core_stands_aside_its_webhooks_go_and_those_of_machines_stay(tmp_path: Path) -> None:
    with Embedded(tmp_path / "up", flags=("--no-runner", "--no-machines", "--capi-core=external")) as server:
        engine = Engine("embedded", server.kubeconfig)
        with HerderRun(engine, tmp_path / "run", "--capi-core=auto", "--machines", *webhook_flags()) as ours:
            api = Api(engine.connection)
            await api.until(api.cluster(VALIDATING, "herder-machines"), lambda answer: answer.status == 200)
            await api.until(OUR_CORE, lambda answer: answer.status == 200)
            await install_another_core(api)
            for kind in (MUTATING, VALIDATING):
                await api.until(api.cluster(kind, "herder-cluster-api"), lambda answer: answer.status == 404)
            (await api.delete(api.cluster(VALIDATING, "herder-machines"))).expect(200)
            await api.until(api.cluster(VALIDATING, "herder-machines"), lambda answer: answer.status == 200)
            assert "disabled the built-in Cluster API core" in ours.log()
            await api.close()


async def install_another_core(api: Api) -> None:
    await api.create_cluster("namespaces", {"metadata": {"name": "capi-system"}})
    theirs = {"providerName": "cluster-api", "type": "CoreProvider", "version": "v1.13.4"}
    body = {"apiVersion": PROVIDERS.api_version, "kind": "Provider", "metadata": {"name": "cluster-api"}, **theirs}
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
