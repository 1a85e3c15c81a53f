from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import json

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.apiserver.admission.quota import QuotaAdmission, QuotaCounter, QuotaStatus
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import Object
from herder.engine.store import Key
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource


class QuotaCluster(FakeCluster):
    def __init__(self) -> None:
        super().__init__()
        self.counter = QuotaCounter(Objects(self.store), lambda: self.now)
        self.admission = QuotaAdmission(self.counter, lambda: self.now)
        self.status = QuotaStatus(self.store, self.counter)

    async def quota(self, hard: dict[str, str], name: str = "q", **spec: Any) -> None:
        await self.put("resourcequotas", name, "ci", spec={"hard": hard} | spec)

    async def admit(self, plural: str, name: str = "x", *, group: str = "", old: Object | None = None,
                  dry_run: bool = False, **body: Any) -> None:  # fmt: skip
        operation = CREATE if old is None else UPDATE
        attributes = Attributes(operation, resource(plural, group=group), "v1", ALICE, name=name, namespace="ci",
                                obj={"metadata": {"name": name}} | body, old=old, dry_run=dry_run)  # fmt: skip
        await self.admission.validate(attributes)

    async def create(self, plural: str, name: str = "x", *, group: str = "", **body: Any) -> Object:
        await self.admit(plural, name, group=group, **body)
        return await self.put(plural, name, "ci", group=group, **body)


@pytest.fixture
async def cluster() -> AsyncIterator[QuotaCluster]:
    created = QuotaCluster()
    yield created
    await created.close()


def container(name: str = "a", requests: Object | None = None, limits: Object | None = None, **more: Any) -> Object:
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}} | more


def spec(*containers: Object, **more: Any) -> Object:
    return {"containers": list(containers)} | more


async def test_objects_are_counted_under_both_names(cluster: QuotaCluster) -> None:
    await cluster.quota({"configmaps": "1", "count/configmaps": "2"})
    await cluster.create("configmaps", "a")
    with pytest.raises(Forbidden) as refusal:
        await cluster.create("configmaps", "b")
    assert refusal.value.message == (
        'configmaps "b" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=1, '
        "limited: configmaps=1"
    )


async def test_custom_resources_are_counted_by_their_full_name(cluster: QuotaCluster) -> None:
    await cluster.quota({"count/widgets.example.com": "1"})
    await cluster.create("widgets", "a", group="example.com")
    await cluster.create("widgets", "b", group="other.com")
    with pytest.raises(Forbidden, match=r"count/widgets.example.com=1, used"):
        await cluster.create("widgets", "b", group="example.com")


async def test_deletion_frees_quota(cluster: QuotaCluster) -> None:
    await cluster.quota({"configmaps": "1"})
    await cluster.create("configmaps", "a")
    await cluster.delete("configmaps", "a", "ci")
    cluster.pass_time(seconds=6)
    await cluster.create("configmaps", "b")


async def test_reservations_count_until_they_expire(cluster: QuotaCluster) -> None:
    await cluster.quota({"configmaps": "1"})
    await cluster.admit("configmaps", "dry", dry_run=True)
    await cluster.admit("configmaps", "a")
    with pytest.raises(Forbidden):
        await cluster.admit("configmaps", "b")
    cluster.pass_time(seconds=6)
    await cluster.admit("configmaps", "b")


async def test_pods_are_charged_for_their_requests_and_limits(cluster: QuotaCluster) -> None:
    await cluster.quota({"pods": "2", "cpu": "1", "limits.memory": "1Gi"})
    modest = container(requests={"cpu": "500m"}, limits={"memory": "512Mi"})
    await cluster.create("pods", "a", spec=spec(modest))
    with pytest.raises(Forbidden) as refusal:
        await cluster.create("pods", "b", spec=spec(container(requests={"cpu": "600m"}, limits={"memory": "1Gi"})))
    assert refusal.value.message == (
        'pods "b" is forbidden: exceeded quota: q, requested: cpu=600m,limits.memory=1Gi, '
        "used: cpu=500m,limits.memory=512Mi, limited: cpu=1,limits.memory=1Gi"
    )
    await cluster.create("pods", "b", spec=spec(modest))
    with pytest.raises(Forbidden, match=r"pods=1, used: .*pods=2"):
        await cluster.create("pods", "c", spec=spec(modest))


async def test_a_pod_must_set_the_resources_that_a_quota_limits(cluster: QuotaCluster) -> None:
    await cluster.quota({"cpu": "1", "limits.memory": "1Gi"})
    with pytest.raises(Forbidden) as refusal:
        await cluster.create("pods", "p", spec=spec(container("c"), container("a")))
    assert refusal.value.message == (
        'pods "p" is forbidden: failed quota: q: must specify cpu for: a,c; limits.memory for: a,c'
    )


async def test_terminated_pods_are_counted_but_use_no_resources(cluster: QuotaCluster) -> None:
    await cluster.quota({"pods": "1", "count/pods": "2"})
    await cluster.create("pods", "a", spec=spec(container()), status={"phase": "Succeeded"})
    await cluster.create("pods", "b", spec=spec(container()))
    with pytest.raises(Forbidden, match="count/pods=1,pods=1"):
        await cluster.create("pods", "c", spec=spec(container()))


async def test_init_containers_count_if_they_request_more_and_sidecars_always_count(cluster: QuotaCluster) -> None:
    await cluster.quota({"requests.cpu": "10"})
    one = {"cpu": "1"}
    sidecar = container("s", one, restartPolicy="Always")
    await cluster.create("pods", "a", spec=spec(container(requests=one), initContainers=[container("i", {"cpu": "3"})]))
    await cluster.create("pods", "b", spec=spec(container(requests=one), initContainers=[sidecar]))
    await cluster.create("pods", "c", spec=spec(container(requests=one), overhead={"cpu": "250m"}))
    quota = cluster.counter.quotas("ci")[0]
    assert str(cluster.counter.used(quota)["requests.cpu"]) == "6250m"


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 5}, {}),
        ({"scopes": ["NotTerminating"]}, {}, {"activeDeadlineSeconds": 5}),
        (
            {"scopes": ["BestEffort"]},
            {},
            {"containers": [container(requests={"cpu": "1"})]},
        ),
        (
            {"scopes": ["NotBestEffort"]},
            {"containers": [container(limits={"memory": "1"})]},
            {},
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            },
            {"priorityClassName": "high"},
            {"priorityClassName": "low"},
        ),
    ],
)
async def test_scopes_select_the_pods_of_a_quota(
    cluster: QuotaCluster, scope: Object, inside: Object, outside: Object
) -> None:
    await cluster.quota({"pods": "0"}, **scope)
    await cluster.create("pods", "out", spec=spec(container()) | outside)
    with pytest.raises(Forbidden):
        await cluster.create("pods", "in", spec=spec(container()) | inside)


async def test_services_and_claims_are_charged_for_ports_types_and_storage(cluster: QuotaCluster) -> None:
    await cluster.quota({
        "services.loadbalancers": "1", "services.nodeports": "1", "requests.storage": "10Gi",
        "gold.storageclass.storage.k8s.io/requests.storage": "5Gi",
    })  # fmt: skip
    await cluster.create("services", "a", spec={"type": "ClusterIP", "ports": [{"port": 1}, {"port": 2}]})
    await cluster.create("services", "b", spec={"type": "NodePort", "ports": [{"port": 1}]})
    with pytest.raises(Forbidden, match="nodeports=1"):
        await cluster.create("services", "c", spec={"type": "LoadBalancer", "ports": [{"port": 1}]})
    claim = {"resources": {"requests": {"storage": "6Gi"}}}
    await cluster.create("persistentvolumeclaims", "a", spec=claim)
    with pytest.raises(Forbidden, match=r"requested: gold\.storageclass.*=6Gi"):
        await cluster.create("persistentvolumeclaims", "b", spec=claim | {"storageClassName": "gold"})


async def test_an_update_is_charged_only_for_the_increase(cluster: QuotaCluster) -> None:
    await cluster.quota({"services.nodeports": "1"})
    old = await cluster.create("services", "a", spec={"type": "NodePort", "ports": [{"port": 1}]})
    await cluster.admit("services", "a", old=old, spec={"type": "NodePort", "ports": [{"port": 9}]})
    with pytest.raises(Forbidden):
        await cluster.admit("services", "a", old=old, spec={"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]})


async def test_the_status_of_a_quota_is_updated(cluster: QuotaCluster) -> None:
    task = asyncio.create_task(cluster.status.run())
    await cluster.quota({"pods": "5", "count/widgets.example.com": "3", "cpu": "1"})

    async def status_becomes(**used: str) -> None:
        wanted = {name.replace("_", "/", 1): amount for name, amount in used.items()}
        async with asyncio.timeout(5):
            while True:
                record = cluster.store.get(Key("resourcequotas", "ci", "q"))
                assert record is not None
                status = json.decode(record.value).get("status") or {}
                if status.get("used") == {"count/widgets.example.com": "0", "cpu": "0", "pods": "0"} | wanted:
                    assert status["hard"] == {"pods": "5", "count/widgets.example.com": "3", "cpu": "1"}
                    return
                await asyncio.sleep(0)

    await status_becomes()
    await cluster.create("pods", "a", spec=spec(container(requests={"cpu": "250m"})))
    await status_becomes(pods="1", cpu="250m")
    await cluster.put("widgets", "a", "ci", group="example.com")
    await status_becomes(**{"pods": "1", "cpu": "250m", "count_widgets.example.com": "1"})
    await cluster.delete("pods", "a", "ci")
    await status_becomes(**{"count_widgets.example.com": "1"})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
