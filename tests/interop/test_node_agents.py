"""Two node agents, one protocol: Herder's and the Go agent run every plan of the table with the same results."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import shutil
import ssl
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.engine import certificates
from tests.interop.node_plans import CASES, FAILED, Case, fill_placeholders
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.manager.node_agents import (
    GO,
    OURS,
    NodeAgent,
    decoded,
    decoded_outputs,
    encoded,
    new_plan,
    plan_secret,
    sh,
    unpack,
)
from tests.support.registry.oci import Registry, image, registry

_TIMEOUT = 20.0
AGENTS = (OURS, GO)
MASKED = {
    "last-apply-time",
    "plan",
    "failed-evidence",
    "probe-errors",
    "probe-statuses",
    "probe-period-seconds",
    "agent-version",
    "agent-checksum",
}


# --- servers ----------------------------------------------------------------------------------------------------------


class Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = {"/ok": 200, "/empty": 204, "/away": 302}.get(self.path, 500)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.99:1/ok")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Endpoints for probes, with and without TLS."""
    directory = tmp_path_factory.mktemp("web")
    now, life = datetime.now(UTC), timedelta(days=1)
    signer = certificates.authority("authority of probes", now=now, life=life)
    served = certificates.serving(signer, "probes", ["127.0.0.1"], now=now, life=life)
    (directory / "ca.pem").write_bytes(signer.certificate_pem)
    (directory / "both.pem").write_bytes(served.certificate_pem + served.key_pem)
    plain, secure = (ThreadingHTTPServer(("127.0.0.1", 0), Web) for _ in range(2))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "both.pem")
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    threads = [threading.Thread(target=each.serve_forever, args=(0.05,), daemon=True) for each in (plain, secure)]
    for thread in threads:
        thread.start()
    yield {
        "web": f"http://127.0.0.1:{plain.server_port}",
        "tls": f"https://127.0.0.1:{secure.server_port}",
        "ca": str(directory / "ca.pem"),
    }
    for each in (plain, secure):
        each.shutdown()
        each.server_close()


INSTALLER = image(
    {"run.sh": "#!/bin/sh\necho ran $1\n", "etc/file": "of layer one\n", "gone": "x", "opaque/old": "x"},
    {"etc/file": "of layer two\n", ".wh.gone": "", "opaque/.wh..wh..opq": "", "opaque/new": ""},
)


@pytest.fixture(scope="module")
def images() -> Iterator[Registry]:
    with registry() as served:
        served.push("tools/installer", "v1", INSTALLER)
        served.push("tools/many", "v1", INSTALLER, index=INSTALLER.index(os="linux", architecture="amd64"))
        yield served


# --- agents -----------------------------------------------------------------------------------------------------------


class AgentRun:
    """An agent with its own Secret, and the history of that Secret."""

    def __init__(self, api: Api, agent: NodeAgent, placeholders: dict[str, str]) -> None:
        self.api, self.agent, self.placeholders = api, agent, placeholders
        self.seen: list[dict[str, bytes]] = []
        self.changed = asyncio.Event()
        self.revision = ""
        self.tasks: list[asyncio.Task[None]] = []

    async def create_secret(self, data: dict[str, str] | None = None) -> None:
        await self.api.create("secrets", plan_secret(self.agent.secret, data or {}))
        self.tasks.append(asyncio.create_task(self._watch()))
        self.agent.prepare()

    def start(self) -> None:
        """Start the agent, and restart it when it exits, as a service manager does: the Go agent exits on write
        conflicts.
        """
        self.agent.start()
        self.tasks.append(asyncio.create_task(self._keep_running()))

    async def _keep_running(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if self.agent.process is not None and self.agent.process.poll() is not None:
                self.agent.start()

    async def _watch(self) -> None:
        selector = f"?fieldSelector=metadata.name%3D{self.agent.secret}"
        async with self.api.watch(self.api.at("secrets") + selector) as events:
            while True:
                event = await events.next()
                if event["type"] != "DELETED":
                    self.seen.append(decoded(event["object"]))
                    self.changed.set()

    async def write_plan(self, data: dict[str, str | bytes]) -> None:
        """Replace the Secret's whole data, except the revision, which continues."""
        url = self.api.at("secrets", self.agent.secret)
        if "plan-state" in data and self.revision:
            data = {"plan-revision": self.revision, **data}
        self.seen.clear()
        (await self.api.put(url, plan_secret(self.agent.secret, data))).expect(200)

    async def until(self, wanted: Any, what: str) -> dict[str, bytes]:
        """The first data that satisfies `wanted`."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                while True:
                    self.changed.clear()
                    for data in self.seen:
                        if wanted(data):
                            return data
                    await self.changed.wait()
        except TimeoutError:
            last = {key: value[:80] for key, value in (self.seen or [{}])[-1].items()}
            raise AssertionError(
                f"{self.agent.program}: {what} did not happen; last data: {last}\n{self.agent.log()[-3000:]}"
            ) from None

    async def run(self, case: Case) -> dict[str, Any]:
        """Run the plan and return its results."""
        plan = fill_placeholders(case.plan, self.placeholders)
        data: dict[str, str | bytes] = {
            "plan": json.dumps(plan),
            "plan-state": "pending",
            "probe-period-seconds": "1",
            **case.data,
        }
        await self.write_plan(data)
        result_data = await self.until(lambda data: data.get("plan-state") in (b"succeeded", b"failed"), "the end")
        self.revision = result_data["plan-revision"].decode()
        result = self.normal(result_data)
        if case.probes:
            wanted = json.loads(json.dumps(case.probes))
            final = await self.until(lambda data: json.loads(data.get("probe-statuses", b"{}")) == wanted, f"{wanted}")
            result["probes"] = json.loads(final["probe-statuses"])
        if self.agent.program == GO and result_data["plan-state"] == b"failed":
            await self.until(lambda data: not data.get("failed-checksum", b"x"), "its second update")
        result["files"] = {path: describe_file(fill_placeholders(path, self.placeholders)) for path in case.files}
        return result

    def normal(self, data: dict[str, bytes]) -> dict[str, Any]:
        """Comparable results: outputs unpacked, checksums masked."""
        checksum = hashlib.sha256(data["plan"]).hexdigest()
        result: dict[str, Any] = {}
        for key, value in data.items():
            if key in ("applied-output", "failed-output"):
                result[key] = decoded_outputs(value)
            elif key == "applied-periodic-output":
                result[key] = {name: periodic(each) for name, each in unpack(value).items()}
            elif key == "plan-revision":
                result[key] = "a revision"
            elif key not in MASKED:
                result[key] = value.decode().replace(checksum, "its checksum")
        return result

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.agent.kill()


def periodic(output: dict[str, Any]) -> dict[str, Any]:
    result = dict(output)
    for key in ("stdout", "stderr"):
        result[key] = None if output[key] is None else base64.b64decode(output[key]).decode()
    for key in ("lastSuccessfulRunTime", "lastFailedRunTime"):
        result[key] = "a time" if output[key] else ""
    return result


def describe_file(path: str) -> str:
    file = Path(path)
    if not file.exists():
        return ""
    found = file.stat()
    mode_and_owner = f"{stat.S_IMODE(found.st_mode):04o} {found.st_uid}:{found.st_gid}"
    return mode_and_owner if file.is_dir() else f"{mode_and_owner} {file.read_text()}"


async def node_kubeconfig(api: Api, secret: str) -> str:
    """The kubeconfig of a service account that may only read and change its own plan."""
    named = {"metadata": {"name": secret}}
    rule = {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [secret],
        "verbs": ["get", "list", "watch", "update"],
    }
    await api.create("serviceaccounts", named)
    await api.create("rbac.authorization.k8s.io/v1/roles", {**named, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": secret, "namespace": api.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": secret}
    await api.create("rbac.authorization.k8s.io/v1/rolebindings", {**named, "subjects": [subject], "roleRef": role})
    token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = (await api.post(api.at("serviceaccounts", secret, "token"), token_request)).expect(200, 201)
    cluster = {
        "server": api.connection.server,
        "certificate-authority-data": base64.b64encode(api.connection.ca or b"").decode(),
    }
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "default",
            "clusters": [{"name": "default", "cluster": cluster}],
            "users": [{"name": "default", "user": {"token": answer["status"]["token"]}}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        }
    )


async def new_agent_run(
    api: Api, directory: Path, program: str, placeholders: dict[str, str], name: str = ""
) -> AgentRun:
    secret = f"{name or 'plan'}-{program}"
    target_dir = directory / program / "place"
    target_dir.mkdir(parents=True, exist_ok=True)
    agent = NodeAgent(directory / program, await node_kubeconfig(api, secret), api.namespace, secret, program)
    return AgentRun(api, agent, {**placeholders, "dir": str(target_dir)})


@pytest.fixture(scope="module")
async def both(
    embedded_engine: Engine, tmp_path_factory: pytest.TempPathFactory, web: dict[str, str], images: Registry
) -> AsyncIterator[list[AgentRun]]:
    if os.geteuid() != 0:
        pytest.skip("needs root, as the Go agent does")
    directory = tmp_path_factory.mktemp("agents")
    admin = Api(embedded_engine.connection)
    api = await admin.in_new_namespace()
    placeholders = {**web, "registry": images.host, "digest": INSTALLER.manifest}
    agents = [await new_agent_run(api, directory, program, placeholders) for program in AGENTS]
    for each in agents:
        await each.create_secret()
        fill_images(each.agent.directory, images)
        each.start()
    yield agents
    for each in agents:
        await each.end()
    await admin.close()


def fill_images(directory: Path, images: Registry) -> None:
    archived = image({"etc/file": "archived\n"})
    (directory / "images").mkdir()
    (directory / "images" / "tool.tar").write_bytes(archived.docker_archive("archived.test/tool:v1"))
    (directory / "images" / "zipped.tar.gz").write_bytes(
        gzip.compress(archived.docker_archive("archived.test/zipped:v1"))
    )
    mirror = {"endpoint": [f"http://{images.host}"], "rewrite": {"^orig/(.*)": "tools/$1"}}
    (directory / "registries.yaml").write_text(yaml.safe_dump({"mirrors": {"mirrored.test": mirror}}))


def prepare(each: AgentRun, case: Case) -> None:
    target_dir = Path(each.placeholders["dir"])
    shutil.rmtree(target_dir)
    target_dir.mkdir()
    for path, content in case.before.items():
        target = Path(fill_placeholders(path, each.placeholders))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_both_agents_run_a_plan_with_the_same_results(both: list[AgentRun], case: Case) -> None:
    for each in both:
        prepare(each, case)
    compared = both if case.runs_on_both else both[:1]
    results = await asyncio.gather(*(each.run(case) for each in compared))
    ours = results[0]
    assert ours["plan-state"] == case.outcome
    assert ours["applied-output" if case.outcome != FAILED else "failed-output"] == dict(case.outputs)
    assert ours["files"] == dict(case.files)
    for name, fields in case.periodic.items():
        assert fields.items() <= ours["applied-periodic-output"][name].items()
    assert set(ours["applied-periodic-output"]) == set(case.periodic)
    for theirs in results[1:]:
        assert (ours == theirs) is not bool(case.deviation)


# --- sequences of plans -----------------------------------------------------------------------------------------------


@pytest.fixture(params=AGENTS)
async def one(
    request: pytest.FixtureRequest, engine: Engine, tmp_path: Path, images: Registry
) -> AsyncIterator[AgentRun]:
    """One agent that is not started yet, on either server."""
    if os.geteuid() != 0:
        pytest.skip("needs root, as the Go agent does")
    admin = Api(engine.connection)
    api = await admin.in_new_namespace()
    each = await new_agent_run(api, tmp_path, request.param, {"registry": images.host})
    yield each
    await each.end()
    await admin.close()


def ran(each: AgentRun) -> str:
    log = Path(each.placeholders["dir"]) / "ran"
    return log.read_text() if log.exists() else ""


def plan_that_records_attempts(each: AgentRun, *more: dict[str, Any]) -> str:
    target_dir = each.placeholders["dir"]
    return json.dumps(new_plan(sh(f"echo $CATTLE_AGENT_ATTEMPT_NUMBER >> {target_dir}/ran"), *more))


async def test_a_missing_image_is_pulled_when_the_plan_is_retried(one: AgentRun, images: Registry) -> None:
    await one.create_secret()
    one.agent.start()
    repository = f"late/{one.agent.program}-{one.api.namespace}"
    plan = json.dumps(new_plan({"image": f"{images.host}/{repository}:v1", **sh("cat etc/file")}))
    await one.write_plan({"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"})
    failed = await one.until(lambda data: data.get("plan-state") == b"failed", "the failure")
    assert failed["failure-count"] == b"1"
    if one.agent.program == GO:
        await one.until(lambda data: data.get("failed-checksum") == b"", "its second update")
    images.push(repository, "v1", INSTALLER)
    one.revision = "1"
    await one.write_plan({"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"})
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    assert decoded_outputs(done["applied-output"]) == {"it": "of layer two\n"}
    assert done["plan-revision"] == b"2"


async def test_a_successful_plan_is_not_rerun_after_a_restart(one: AgentRun) -> None:
    await one.create_secret()
    one.agent.start()
    await one.write_plan({"plan": plan_that_records_attempts(one), "plan-state": "pending"})
    await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    one.agent.stop()
    one.agent.start()
    one.revision = "1"
    await one.write_plan({"plan": json.dumps(new_plan(sh("echo next"))), "plan-state": "pending"})
    await one.until(lambda data: data.get("plan-state") == b"succeeded", "the next one")
    assert ran(one) == "1\n"


async def test_a_plan_in_progress_is_rerun_with_the_next_attempt(one: AgentRun) -> None:
    data = {
        "plan": plan_that_records_attempts(one),
        "plan-state": "in-progress",
        "plan-revision": "3",
        "failure-count": "2",
    }
    await one.create_secret(data)
    one.agent.start()
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    assert (done["plan-revision"], ran(one)) == (b"3", "3\n")


async def test_without_states_a_plan_is_reapplied_after_a_restart(one: AgentRun) -> None:
    await one.create_secret({"plan": plan_that_records_attempts(one)})
    one.agent.start()
    first = await one.until(lambda data: data.get("success-count") == b"1", "the first success")
    assert first["applied-checksum"].decode() == hashlib.sha256(first["plan"]).hexdigest()
    assert (first["failure-count"], first["failed-checksum"]) == (b"0", b"")
    assert not {"plan-state", "plan-revision"} & set(first)
    one.agent.stop()
    one.agent.start()
    await one.until(lambda data: data.get("success-count") == b"2", "the second success")
    assert ran(one) == "1\n1\n"


async def test_without_states_a_failure_is_counted_and_limited(one: AgentRun) -> None:
    await one.create_secret({"plan": plan_that_records_attempts(one, sh("exit 5", "bad")), "max-failures": "1"})
    one.agent.start()
    failed = await one.until(lambda data: data.get("failure-count") == b"1", "the failure")
    assert failed["failed-checksum"].decode() == hashlib.sha256(failed["plan"]).hexdigest()
    assert decoded_outputs(failed["failed-output"]) == {"it": "", "bad": ""}
    one.agent.stop()
    one.agent.start()
    one.seen.clear()
    change = {"data": encoded({"probe-period-seconds": "1"})}
    (await one.api.patch(one.api.at("secrets", one.agent.secret), change)).expect(200)
    await one.until(lambda data: "probe-period-seconds" in data, "the edit")
    assert ran(one) == "1\n"


async def test_a_recreated_secret_is_applied_again(one: AgentRun) -> None:
    await one.create_secret({"plan": plan_that_records_attempts(one)})
    one.agent.start()
    first = await one.until(lambda data: data.get("success-count") == b"1", "the first success")
    url = one.api.at("secrets", one.agent.secret)
    (await one.api.delete(url)).expect(200)
    one.seen.clear()
    await one.api.create("secrets", plan_secret(one.agent.secret, {"plan": first["plan"]}))
    await one.until(lambda data: data.get("success-count") == b"1", "the success of the new one")
    assert ran(one) == "1\n1\n"


async def test_the_applied_plan_is_kept_on_disk(one: AgentRun) -> None:
    await one.create_secret({"plan": plan_that_records_attempts(one), "plan-state": "pending"})
    one.agent.start()
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    (plan_file,) = (one.agent.directory / "applied").glob("*-applied.plan")
    content = json.loads(plan_file.read_text())
    assert content["Checksum"] == hashlib.sha256(done["plan"]).hexdigest()
    assert content["Plan"]["instructions"][0]["name"] == "it"
    assert stat.S_IMODE(plan_file.stat().st_mode) == 0o600


async def test_the_go_agent_overwrites_a_failure_but_herders_does_not(one: AgentRun) -> None:
    """A deviation that planners must handle: the Go agent's second update turns a failure into a success."""
    await one.create_secret(
        {
            "plan": plan_that_records_attempts(one, sh("exit 5", "bad")),
            "plan-state": "pending",
            "probe-period-seconds": "1",
        }
    )
    one.agent.start()
    failed = await one.until(lambda data: data.get("plan-state") == b"failed", "the failure")
    assert failed["failure-count"] == b"1"
    if one.agent.program == GO:
        later = await one.until(lambda data: data.get("failed-checksum") == b"", "its second update")
        assert later["applied-checksum"] == hashlib.sha256(later["plan"]).hexdigest().encode()
        assert later["failure-count"] == b"0"
    else:
        assert json.loads(failed["failed-evidence"])["exitCode"] == 5
        assert "applied-checksum" not in one.seen[-1]
