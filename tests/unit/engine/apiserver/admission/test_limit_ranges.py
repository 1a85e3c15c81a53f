from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.admission.limit_ranges import LimitRanges
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource


async def create_limit_range(cluster: FakeCluster, kind: str, **bounds: Object) -> None:
    await cluster.put("limitranges", "limits", "ci", spec={"limits": [{"type": kind} | bounds]})


async def run_admission(cluster: FakeCluster, obj: Object, plural: str = "pods", **more: Any) -> Object:
    facts: dict[str, Any] = {"operation": CREATE} | more
    attributes = Attributes(
        **facts, resource=resource(plural), version="v1", user=ALICE, name="x", namespace="ci", obj=obj
    )
    plugin = LimitRanges(Objects(cluster.store))
    await plugin.admit(attributes)
    await plugin.validate(attributes)
    return obj


def pod(*containers: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"containers": list(containers)} | spec}


def container(name: str = "a", requests: Object | None = None, limits: Object | None = None) -> Object:
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}}


async def test_containers_without_resources_get_defaults_and_an_annotation(cluster: FakeCluster) -> None:
    await create_limit_range(
        cluster, "Container", default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "500m"}
    )
    created = await run_admission(
        cluster, pod(container("a"), container("b", {"cpu": "1"}, {"cpu": "2"}), initContainers=[{"name": "i"}])
    )
    first, second = created["spec"]["containers"]
    assert first["resources"] == {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert second["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; "
        "memory limit for container b; cpu request for init container i; cpu, memory limit for init container i"
    )


async def test_without_limit_ranges_a_pod_is_unchanged(cluster: FakeCluster) -> None:
    assert await run_admission(cluster, pod({"name": "a"})) == pod({"name": "a"})


@pytest.mark.parametrize(
    ("bounds", "container_spec", "expected"),
    [
        ({"min": {"cpu": "100m"}}, container(requests={"cpu": "50m"}),
         "minimum cpu usage per Container is 100m, but request is 50m"),
        ({"min": {"cpu": "100m"}}, container(), "minimum cpu usage per Container is 100m.  No request is specified"),
        ({"max": {"cpu": "1"}}, container(limits={"cpu": "2"}),
         "maximum cpu usage per Container is 1, but limit is 2"),
        ({"max": {"cpu": "1"}}, container(), "maximum cpu usage per Container is 1.  No limit is specified"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, container(requests={"cpu": "1"}, limits={"cpu": "5"}),
         "cpu max limit to request ratio per Container is 2, but provided ratio is 5.000000"),
        ({"maxLimitRequestRatio": {"cpu": "2"}}, container(limits={"cpu": "5"}),
         "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"),
        ({"min": {"cpu": "100m"}, "max": {"memory": "1Gi"}}, container(),
         "[maximum memory usage per Container is 1Gi.  No limit is specified, "
         "minimum cpu usage per Container is 100m.  No request is specified]"),
    ],
)  # fmt: skip
async def test_containers_out_of_bounds_are_rejected(
    cluster: FakeCluster, bounds: Object, container_spec: Object, expected: str
) -> None:
    await create_limit_range(cluster, "Container", **bounds)
    with pytest.raises(Forbidden) as refusal:
        await run_admission(cluster, pod(container_spec))
    assert refusal.value.message == f'pods "x" is forbidden: {expected}'


async def test_the_total_of_a_pod_has_separate_bounds(cluster: FakeCluster) -> None:
    await create_limit_range(cluster, "Pod", max={"cpu": "3"})
    container_with_two_cpus = container(limits={"cpu": "2"})
    await run_admission(cluster, pod(container_with_two_cpus))
    with pytest.raises(Forbidden, match="maximum cpu usage per Pod is 3, but limit is 4"):
        await run_admission(cluster, pod(container_with_two_cpus, container_with_two_cpus | {"name": "b"}))


async def test_claims_are_limited_by_their_requests(cluster: FakeCluster) -> None:
    await create_limit_range(cluster, "PersistentVolumeClaim", min={"storage": "1Gi"}, max={"storage": "10Gi"})

    def claim(storage: str) -> Object:
        return {"metadata": {"name": "x"}, "spec": {"resources": {"requests": {"storage": storage}}}}

    await run_admission(cluster, claim("5Gi"), "persistentvolumeclaims")
    with pytest.raises(Forbidden, match="minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"):
        await run_admission(cluster, claim("1Mi"), "persistentvolumeclaims")
    with pytest.raises(Forbidden, match="maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 1Ti"):
        await run_admission(cluster, claim("1Ti"), "persistentvolumeclaims")


async def test_pod_updates_are_checked_only_on_resize(cluster: FakeCluster) -> None:
    await create_limit_range(cluster, "Container", max={"cpu": "1"})
    big = pod(container(limits={"cpu": "2"}))
    await run_admission(cluster, big, operation=UPDATE, old=big)
    with pytest.raises(Forbidden):
        await run_admission(cluster, big, operation=UPDATE, old=big, subresource="resize")
