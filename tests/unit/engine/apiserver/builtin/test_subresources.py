"""Subresources: binding, eviction, ephemeral containers, resize, finalize and logs."""

from __future__ import annotations

import copy
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import BadRequest, Conflict, Invalid, NotFound, StatusError, TooManyRequests
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import Query, Request, Response, User
from tests.support.kube import Authority
from tests.unit.engine.apiserver.builtin.driving import NOW, create, resource_of
from tests.unit.engine.apiserver.builtin.samples import LABELS, SAMPLES

SAMPLE = {(sample["kind"], sample["metadata"]["name"]): sample for sample in SAMPLES}


class Cluster:
    """Objects of one namespace, as a handler sees them."""

    def __init__(self, parent: Object | None, *others: tuple[GroupResource, Object]) -> None:
        self.parent = parent
        self.others = others
        self.deleted: Object | None = None

    def invoke(self, subresource: str, body: Object | None = None, *, verb: str = "create", query: str = "") -> Any:
        resource = resource_of(self.parent or SAMPLE["Pod", "pod"])
        request = SubresourceRequest(
            request=Request("POST", "/", query=Query.parse(query)),
            user=User("admin"),
            resource=resource,
            version="v1",
            subresource=subresource,
            verb=verb,
            namespace="default",
            name="pod" if resource.plural == "pods" else "ns",
            body=body,
            parent=copy.deepcopy(self.parent),
            now=NOW,
            entropy=lambda count: bytes(count),
            dry_run=False,
            warnings=[],
            path=(),
            lookup=self._lookup,
            list=lambda wanted, _: [obj for kind, obj in self.others if kind == wanted],
            update=self._update,
            delete=self._delete,
        )
        return resource.subresources[subresource].call(request)

    def _lookup(self, wanted: GroupResource, _: str, name: str) -> Object | None:
        found = (obj for kind, obj in self.others if kind == wanted and obj["metadata"]["name"] == name)
        return next(found, None)

    async def _update(self, change: Callable[[Object], None]) -> Object:
        assert self.parent is not None
        change(self.parent)
        return self.parent

    async def _delete(self, options: Object) -> Object:
        self.deleted = options
        return {}


def pod(**status: Any) -> Object:
    created = create(SAMPLE["Pod", "pod"])
    created["metadata"]["labels"] = dict(LABELS)
    created["status"].update(status)
    return created


READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
NODE = {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "pod"}}
EVICTION = {"metadata": {"name": "pod"}}


async def test_binding_assigns_a_pod_to_a_node() -> None:
    cluster = Cluster(pod())
    answer = await cluster.invoke("binding", NODE)
    assert answer["status"] == "Success"
    assert cluster.parent is not None
    assert cluster.parent["spec"]["nodeName"] == "n1"
    assert cluster.parent["status"]["conditions"][0]["type"] == "PodScheduled"


async def test_a_pod_is_bound_once() -> None:
    cluster = Cluster(pod())
    await cluster.invoke("binding", NODE)
    with pytest.raises(Conflict, match='pods/binding "pod": pod pod is already assigned to node "n1"'):
        await cluster.invoke("binding", NODE)


async def test_binding_requires_a_pod_and_a_node() -> None:
    with pytest.raises(NotFound, match='pods "pod" not found'):
        await Cluster(None).invoke("binding", NODE)
    with pytest.raises(Invalid, match=r"target\.name: Required value"):
        await Cluster(pod()).invoke("binding", {"target": {}})


def budget(name: str = "b", *, allowed: int = 0, healthy: int = 1, wanted: int = 1, observed: int = 1) -> Object:
    created = create({**SAMPLE["PodDisruptionBudget", "pdb"], "metadata": {"name": name}})
    created["metadata"]["generation"] = 1
    created["status"] = {
        "observedGeneration": observed,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": wanted,
    }
    return created


BUDGETS = GroupResource("policy", "poddisruptionbudgets")
PODS = GroupResource("", "pods")


async def test_eviction_deletes_with_the_callers_options() -> None:
    cluster = Cluster(pod(**READY))
    answer = await cluster.invoke("eviction", {**EVICTION, "deleteOptions": {"gracePeriodSeconds": 5}})
    assert answer["code"] == 201
    assert cluster.deleted == {"gracePeriodSeconds": 5}


async def test_eviction_is_rejected_when_the_budget_allows_no_disruption() -> None:
    running = pod(**READY)
    cluster = Cluster(running, (BUDGETS, budget()), (PODS, running))
    with pytest.raises(TooManyRequests, match="would violate the pod's disruption budget") as rejected:
        await cluster.invoke("eviction", EVICTION)
    assert rejected.value.details == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
            }
        ]
    }
    assert cluster.deleted is None


async def test_eviction_is_rejected_while_the_budget_is_unobserved() -> None:
    cluster = Cluster(pod(**READY), (BUDGETS, budget(observed=0)))
    with pytest.raises(TooManyRequests) as rejected:
        await cluster.invoke("eviction", EVICTION)
    assert rejected.value.headers == {"Retry-After": "10"}


async def test_eviction_counts_pods_deleted_since_the_budget_was_observed() -> None:
    running, deleting = pod(**READY), pod(**READY)
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stale = budget(allowed=1, healthy=2)
    with pytest.raises(TooManyRequests):
        await Cluster(running, (BUDGETS, stale), (PODS, running), (PODS, deleting)).invoke("eviction", EVICTION)
    await Cluster(running, (BUDGETS, stale), (PODS, running), (PODS, pod(**READY))).invoke("eviction", EVICTION)


async def test_eviction_rejects_two_budgets() -> None:
    cluster = Cluster(pod(**READY), (BUDGETS, budget("a")), (BUDGETS, budget("b")))
    with pytest.raises(StatusError, match="more than one PodDisruptionBudget") as rejected:
        await cluster.invoke("eviction", EVICTION)
    assert rejected.value.code == 500


async def test_eviction_of_a_finished_pod_ignores_the_budget() -> None:
    cluster = Cluster(pod(phase="Succeeded"), (BUDGETS, budget()))
    await cluster.invoke("eviction", EVICTION)
    assert cluster.deleted == {}


async def test_eviction_must_name_the_pod() -> None:
    with pytest.raises(BadRequest, match="name in URL does not match name in Eviction object"):
        await Cluster(pod()).invoke("eviction", {"metadata": {"name": "other"}})


async def test_ephemeral_containers_are_added_and_never_removed() -> None:
    cluster = Cluster(pod())
    wanted = pod()
    wanted["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "x"}]
    changed = await cluster.invoke("ephemeralcontainers", wanted, verb="update")
    assert changed["spec"]["ephemeralContainers"][0]["name"] == "debug"
    with pytest.raises(Invalid, match="may not be removed"):
        await cluster.invoke("ephemeralcontainers", pod(), verb="update")


async def test_resize_changes_only_resources() -> None:
    wanted = pod()
    wanted["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    parent = pod()
    parent["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m"}}
    changed = await Cluster(parent).invoke("resize", wanted, verb="update")
    assert changed["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1"}}
    with pytest.raises(Invalid, match="Pod QOS Class may not change as a result of resizing"):
        await Cluster(pod()).invoke("resize", wanted, verb="update")
    wanted["spec"]["containers"][0]["image"] = "other"
    with pytest.raises(Invalid, match="only cpu and memory resources are mutable"):
        await Cluster(pod()).invoke("resize", wanted, verb="update")


async def test_finalize_replaces_the_spec_finalizers_of_a_namespace() -> None:
    cluster = Cluster(create(SAMPLE["Namespace", "ns"]))
    answer = await cluster.invoke("finalize", {"metadata": {"name": "ns"}, "spec": {}}, verb="update")
    assert "finalizers" not in answer["spec"]


# --- logs -------------------------------------------------------------------------------------------------------


async def test_logs_of_an_unscheduled_pod_are_empty() -> None:
    answer = await Cluster(pod()).invoke("log", verb="get")
    assert isinstance(answer, Response)
    assert answer.status == 204


async def test_logs_require_an_existing_container() -> None:
    several = pod()
    several["spec"]["containers"].append({"name": "d", "image": "x"})
    with pytest.raises(BadRequest, match=r"a container name must be specified for pod pod, choose one of: \[c d\]"):
        await Cluster(several).invoke("log", verb="get")
    with pytest.raises(BadRequest, match="container x is not valid for pod pod"):
        await Cluster(several).invoke("log", verb="get", query="container=x")


@pytest.mark.parametrize("query", ["tailLines=-1", "limitBytes=0", "sinceSeconds=0"])
async def test_log_options_are_validated(query: str) -> None:
    with pytest.raises(Invalid):
        await Cluster(pod()).invoke("log", verb="get", query=query)


async def test_logs_are_read_from_the_node_of_the_pod(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.path}?{request.query_string}")

    async with serving(answer, tmp_path) as port:
        cluster = Cluster(running(), (GroupResource("", "nodes"), reached_at(port)))
        response = await cluster.invoke("log", verb="get", query="tailLines=5")
        assert isinstance(response, Response)
        assert response.stream is not None
        chunks = [chunk async for chunk in response.stream]
    assert b"".join(chunks) == b"/containerLogs/default/pod/c?tailLines=5"


async def test_redirects_of_a_node_are_not_followed_for_logs(tmp_path: Path) -> None:
    """The server presents an administrator's certificate to nodes, and its caller reads the response."""

    async def answer(request: web.Request) -> web.Response:
        if request.path.startswith("/containerLogs/"):
            raise web.HTTPFound(f"https://127.0.0.1:{request.url.port}/api/v1/secrets")
        return web.Response(text="the content of another server")

    async with serving(answer, tmp_path) as port:
        cluster = Cluster(running(), (GroupResource("", "nodes"), reached_at(port)))
        with pytest.raises(StatusError, match="the kubelet returned 302"):
            _ = [chunk async for chunk in (await cluster.invoke("log", verb="get")).stream]


def running() -> Object:
    bound = pod(phase="Running")
    bound["spec"]["nodeName"] = "node"
    return bound


def reached_at(port: int) -> Object:
    node = create(SAMPLE["Node", "node"])
    node["status"] = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return node


class serving:
    """Run a TLS server on loopback during a test."""

    def __init__(self, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], directory: Path) -> None:
        certificate, key = Authority(directory).issue("kubelet", server=True)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self.runner = web.ServerRunner(web.Server(handler))

    async def __aenter__(self) -> int:
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        port: int = self.runner.addresses[0][1]
        return port

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()
