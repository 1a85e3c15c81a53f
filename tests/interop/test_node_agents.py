"""Two node agents, one protocol: every plan of the table on ours and on the Go one, and what each wrote is the same."""

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
from tests.interop.node_plans import CASES, FAILED, Case, filled
from tests.support.api import Api
from tests.support.engines import Engine
from tests.support.node_agents import GO, OURS, NodeAgent, decoded, encoded, once, plan_secret, said, sh, unpacked
from tests.support.oci import Registry, image, registry

_PATIENCE = 20.0
AGENTS = (OURS, GO)
MASKED = {"last-apply-time", "plan", "failed-evidence", "probe-errors", "probe-statuses", "probe-period-seconds"}


# --- what plans meet -------------------------------------------------------------------------------------------------


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
    """Answers to probes, with and without TLS."""
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


# --- the two of them --------------------------------------------------------------------------------------------------


class Contestant:
    """An agent with a Secret of its own, and all that was ever in that Secret."""

    def __init__(self, api: Api, agent: NodeAgent, words: dict[str, str]) -> None:
        self.api, self.agent, self.words = api, agent, words
        self.seen: list[dict[str, bytes]] = []
        self.changed = asyncio.Event()
        self.revision = ""
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, data: dict[str, str] | None = None) -> None:
        await self.api.create("secrets", plan_secret(self.agent.secret, data or {}))
        self.tasks.append(asyncio.create_task(self._watch()))
        self.agent.prepare()

    def start(self) -> None:
        """And again when it ends by itself, as a service manager does: the Go agent leaves when a write conflicts."""
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

    async def order(self, data: dict[str, str | bytes]) -> None:
        """The Secret's whole data, but for the revision, which goes on."""
        url = self.api.at("secrets", self.agent.secret)
        if "plan-state" in data and self.revision:
            data = {"plan-revision": self.revision, **data}
        self.seen.clear()
        (await self.api.put(url, plan_secret(self.agent.secret, data))).expect(200)

    async def until(self, wanted: Any, what: str) -> dict[str, bytes]:
        """The first data that is as wanted."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    self.changed.clear()
                    for data in self.seen:
                        if wanted(data):
                            return data
                    await self.changed.wait()
        except TimeoutError:
            last = {key: value[:80] for key, value in (self.seen or [{}])[-1].items()}
            raise AssertionError(
                f"{self.agent.program}: {what} did not come; the last was {last}\n{self.agent.log()[-3000:]}"
            ) from None

    async def run(self, case: Case) -> dict[str, Any]:
        """What came of it."""
        plan = filled(case.plan, self.words)
        data: dict[str, str | bytes] = {
            "plan": json.dumps(plan),
            "plan-state": "pending",
            "probe-period-seconds": "1",
            **case.data,
        }
        await self.order(data)
        told = await self.until(lambda data: data.get("plan-state") in (b"succeeded", b"failed"), "the end")
        self.revision = told["plan-revision"].decode()
        result = self.normal(told)
        if case.probes:
            wanted = json.loads(json.dumps(case.probes))
            last = await self.until(lambda data: json.loads(data.get("probe-statuses", b"{}")) == wanted, f"{wanted}")
            result["probes"] = json.loads(last["probe-statuses"])
        if self.agent.program == GO and told["plan-state"] == b"failed":
            await self.until(lambda data: not data.get("failed-checksum", b"x"), "its second thoughts")
        result["files"] = {path: looked_at(filled(path, self.words)) for path in case.files}
        return result

    def normal(self, told: dict[str, bytes]) -> dict[str, Any]:
        """Comparable: outputs unpacked, checksums as words."""
        checksum = hashlib.sha256(told["plan"]).hexdigest()
        result: dict[str, Any] = {}
        for key, value in told.items():
            if key in ("applied-output", "failed-output"):
                result[key] = said(value)
            elif key == "applied-periodic-output":
                result[key] = {name: periodic(each) for name, each in unpacked(value).items()}
            elif key == "plan-revision":
                result[key] = "told"
            elif key not in MASKED:
                result[key] = value.decode().replace(checksum, "its checksum")
        return result

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.agent.kill()


def periodic(told: dict[str, Any]) -> dict[str, Any]:
    result = dict(told)
    for key in ("stdout", "stderr"):
        result[key] = None if told[key] is None else base64.b64decode(told[key]).decode()
    for key in ("lastSuccessfulRunTime", "lastFailedRunTime"):
        result[key] = "a time" if told[key] else ""
    return result


def looked_at(path: str) -> str:
    place = Path(path)
    if not place.exists():
        return ""
    found = place.stat()
    about = f"{stat.S_IMODE(found.st_mode):04o} {found.st_uid}:{found.st_gid}"
    return about if place.is_dir() else f"{about} {place.read_text()}"


async def node_kubeconfig(api: Api, secret: str) -> str:
    """Of a service account that may see and change its own plan, and nothing else."""
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
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = (await api.post(api.at("serviceaccounts", secret, "token"), asked)).expect(200, 201)
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


async def contestant(api: Api, directory: Path, program: str, words: dict[str, str], name: str = "") -> Contestant:
    secret = f"{name or 'plan'}-{program}"
    place = directory / program / "place"
    place.mkdir(parents=True, exist_ok=True)
    agent = NodeAgent(directory / program, await node_kubeconfig(api, secret), api.namespace, secret, program)
    return Contestant(api, agent, {**words, "dir": str(place)})


@pytest.fixture(scope="module")
async def both(
    embedded_engine: Engine, tmp_path_factory: pytest.TempPathFactory, web: dict[str, str], images: Registry
) -> AsyncIterator[list[Contestant]]:
    if os.geteuid() != 0:
        pytest.skip("needs root, as the Go agent does")
    directory = tmp_path_factory.mktemp("agents")
    admin = Api(embedded_engine.connection)
    api = await admin.in_new_namespace()
    words = {**web, "registry": images.host, "digest": INSTALLER.manifest}
    them = [await contestant(api, directory, program, words) for program in AGENTS]
    for each in them:
        await each.begin()
        fill_images(each.agent.directory, images)
        each.start()
    yield them
    for each in them:
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


def prepare(each: Contestant, case: Case) -> None:
    place = Path(each.words["dir"])
    shutil.rmtree(place)
    place.mkdir()
    for path, content in case.before.items():
        target = Path(filled(path, each.words))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_both_agents_do_what_a_plan_says_and_tell_the_same(both: list[Contestant], case: Case) -> None:
    for each in both:
        prepare(each, case)
    judged = both if case.shown else both[:1]
    results = await asyncio.gather(*(each.run(case) for each in judged))
    ours = results[0]
    assert ours["plan-state"] == case.ends
    assert ours["applied-output" if case.ends != FAILED else "failed-output"] == dict(case.says)
    assert ours["files"] == dict(case.files)
    for name, fields in case.periodic.items():
        assert fields.items() <= ours["applied-periodic-output"][name].items()
    assert set(ours["applied-periodic-output"]) == set(case.periodic)
    for theirs in results[1:]:
        assert (ours == theirs) is not bool(case.trap)


# --- more than one plan -----------------------------------------------------------------------------------------------


@pytest.fixture(params=AGENTS)
async def one(
    request: pytest.FixtureRequest, engine: Engine, tmp_path: Path, images: Registry
) -> AsyncIterator[Contestant]:
    """One agent that is not started yet, on either server."""
    if os.geteuid() != 0:
        pytest.skip("needs root, as the Go agent does")
    admin = Api(engine.connection)
    api = await admin.in_new_namespace()
    each = await contestant(api, tmp_path, request.param, {"registry": images.host})
    yield each
    await each.end()
    await admin.close()


def ran(each: Contestant) -> str:
    log = Path(each.words["dir"]) / "ran"
    return log.read_text() if log.exists() else ""


def noting(each: Contestant, *more: dict[str, Any]) -> str:
    place = each.words["dir"]
    return json.dumps(once(sh(f"echo $CATTLE_AGENT_ATTEMPT_NUMBER >> {place}/ran"), *more))


async def test_an_image_that_could_not_be_pulled_is_pulled_when_the_planner_says_again(
    one: Contestant, images: Registry
) -> None:
    await one.begin()
    one.agent.start()
    repository = f"late/{one.agent.program}-{one.api.namespace}"
    plan = json.dumps(once({"image": f"{images.host}/{repository}:v1", **sh("cat etc/file")}))
    await one.order({"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"})
    failed = await one.until(lambda data: data.get("plan-state") == b"failed", "the failure")
    assert failed["failure-count"] == b"1"
    if one.agent.program == GO:
        await one.until(lambda data: data.get("failed-checksum") == b"", "its second thoughts")
    images.push(repository, "v1", INSTALLER)
    one.revision = "1"
    await one.order({"plan": plan, "plan-state": "pending", "max-failures": "-1", "failure-threshold": "1"})
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    assert said(done["applied-output"]) == {"it": "of layer two\n"}
    assert done["plan-revision"] == b"2"


async def test_a_plan_that_succeeded_is_not_run_again_after_a_restart(one: Contestant) -> None:
    await one.begin()
    one.agent.start()
    await one.order({"plan": noting(one), "plan-state": "pending"})
    await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    one.agent.stop()
    one.agent.start()
    one.revision = "1"
    await one.order({"plan": json.dumps(once(sh("echo next"))), "plan-state": "pending"})
    await one.until(lambda data: data.get("plan-state") == b"succeeded", "the next one")
    assert ran(one) == "1\n"


async def test_a_plan_in_progress_at_the_start_is_run_with_the_next_attempt(one: Contestant) -> None:
    data = {"plan": noting(one), "plan-state": "in-progress", "plan-revision": "3", "failure-count": "2"}
    await one.begin(data)
    one.agent.start()
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    assert (done["plan-revision"], ran(one)) == (b"3", "3\n")


async def test_without_states_a_plan_is_applied_once_and_again_after_a_restart(one: Contestant) -> None:
    await one.begin({"plan": noting(one)})
    one.agent.start()
    first = await one.until(lambda data: data.get("success-count") == b"1", "the first success")
    assert first["applied-checksum"].decode() == hashlib.sha256(first["plan"]).hexdigest()
    assert (first["failure-count"], first["failed-checksum"]) == (b"0", b"")
    assert not {"plan-state", "plan-revision"} & set(first)
    one.agent.stop()
    one.agent.start()
    await one.until(lambda data: data.get("success-count") == b"2", "the second success")
    assert ran(one) == "1\n1\n"


async def test_without_states_a_failure_is_counted_and_limited(one: Contestant) -> None:
    await one.begin({"plan": noting(one, sh("exit 5", "bad")), "max-failures": "1"})
    one.agent.start()
    failed = await one.until(lambda data: data.get("failure-count") == b"1", "the failure")
    assert failed["failed-checksum"].decode() == hashlib.sha256(failed["plan"]).hexdigest()
    assert said(failed["failed-output"]) == {"it": "", "bad": ""}
    one.agent.stop()
    one.agent.start()
    one.seen.clear()
    change = {"data": encoded({"probe-period-seconds": "1"})}
    (await one.api.patch(one.api.at("secrets", one.agent.secret), change)).expect(200)
    await one.until(lambda data: "probe-period-seconds" in data, "the edit")
    assert ran(one) == "1\n"


async def test_a_secret_made_anew_is_applied_anew(one: Contestant) -> None:
    await one.begin({"plan": noting(one)})
    one.agent.start()
    first = await one.until(lambda data: data.get("success-count") == b"1", "the first success")
    url = one.api.at("secrets", one.agent.secret)
    (await one.api.delete(url)).expect(200)
    one.seen.clear()
    await one.api.create("secrets", plan_secret(one.agent.secret, {"plan": first["plan"]}))
    await one.until(lambda data: data.get("success-count") == b"1", "the success of the new one")
    assert ran(one) == "1\n1\n"


async def test_the_applied_plan_is_kept_on_disk(one: Contestant) -> None:
    await one.begin({"plan": noting(one), "plan-state": "pending"})
    one.agent.start()
    done = await one.until(lambda data: data.get("plan-state") == b"succeeded", "the success")
    (kept,) = (one.agent.directory / "applied").glob("*-applied.plan")
    content = json.loads(kept.read_text())
    assert content["Checksum"] == hashlib.sha256(done["plan"]).hexdigest()
    assert content["Plan"]["instructions"][0]["name"] == "it"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


async def test_after_a_failure_ours_keeps_what_the_go_agent_takes_back(one: Contestant) -> None:
    """The trap that planners have to live with: a second look turns a failure into bookkeeping of a success."""
    await one.begin({"plan": noting(one, sh("exit 5", "bad")), "plan-state": "pending", "probe-period-seconds": "1"})
    one.agent.start()
    failed = await one.until(lambda data: data.get("plan-state") == b"failed", "the failure")
    assert failed["failure-count"] == b"1"
    if one.agent.program == GO:
        later = await one.until(lambda data: data.get("failed-checksum") == b"", "its second thoughts")
        assert later["applied-checksum"] == hashlib.sha256(later["plan"]).hexdigest().encode()
        assert later["failure-count"] == b"0"
    else:
        assert json.loads(failed["failed-evidence"])["exitCode"] == 5
        assert "applied-checksum" not in one.seen[-1]
