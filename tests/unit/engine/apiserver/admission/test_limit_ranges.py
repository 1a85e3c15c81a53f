from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.admission.chain import CREATE, UPDATE, Attributes
from herder.engine.apiserver.admission.limit_ranges import LimitRanges
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.meta.errors import Forbidden
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.auth.world import ALICE, World
from tests.unit.engine.apiserver.resources import resource


async def limit(world: World, kind: str, **bounds: Object) -> None:
    await world.put("limitranges", "limits", "ci", spec={"limits": [{"type": kind} | bounds]})


async def admitted(world: World, obj: Object, plural: str = "pods", **more: Any) -> Object:
    facts: dict[str, Any] = {"operation": CREATE} | more
    attributes = Attributes(
        **facts, resource=resource(plural), version="v1", user=ALICE, name="x", namespace="ci", obj=obj
    )
    plugin = LimitRanges(Objects(world.store))
    await plugin.admit(attributes)
    await plugin.validate(attributes)
    return obj


def pod(*containers: Object, **spec: Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": {"containers": list(containers)} | spec}


def container(name: str = "a", requests: Object | None = None, limits: Object | None = None) -> Object:
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}}


async def test_containers_without_resources_get_defaults_and_an_annotation(world: World) -> None:
    await limit(world, "Container", default={"cpu": "1", "memory": "1Gi"}, defaultRequest={"cpu": "500m"})
    created = await admitted(
        world, pod(container("a"), container("b", {"cpu": "1"}, {"cpu": "2"}), initContainers=[{"name": "i"}])
    )
    first, second = created["spec"]["containers"]
    assert first["resources"] == {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    assert second["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    assert created["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; "
        "memory limit for container b; cpu request for init container i; cpu, memory limit for init container i"
    )


async def test_without_limit_ranges_a_pod_stays_as_it_is(world: World) -> None:
    assert await admitted(world, pod({"name": "a"})) == pod({"name": "a"})


@pytest.mark.parametrize(
    ("bounds", "asked", "expected"),
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
async def test_what_is_out_of_bounds_is_refused(world: World, bounds: Object, asked: Object, expected: str) -> None:
    await limit(world, "Container", **bounds)
    with pytest.raises(Forbidden) as refusal:
        await admitted(world, pod(asked))
    assert refusal.value.message == f'pods "x" is forbidden: {expected}'


async def test_a_pod_as_a_whole_has_bounds_of_its_own(world: World) -> None:
    await limit(world, "Pod", max={"cpu": "3"})
    two = container(limits={"cpu": "2"})
    await admitted(world, pod(two))
    with pytest.raises(Forbidden, match="maximum cpu usage per Pod is 3, but limit is 4"):
        await admitted(world, pod(two, two | {"name": "b"}))


async def test_claims_are_limited_by_their_requests(world: World) -> None:
    await limit(world, "PersistentVolumeClaim", min={"storage": "1Gi"}, max={"storage": "10Gi"})

    def claim(storage: str) -> Object:
        return {"metadata": {"name": "x"}, "spec": {"resources": {"requests": {"storage": storage}}}}

    await admitted(world, claim("5Gi"), "persistentvolumeclaims")
    with pytest.raises(Forbidden, match="minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"):
        await admitted(world, claim("1Mi"), "persistentvolumeclaims")
    with pytest.raises(Forbidden, match="maximum storage usage per PersistentVolumeClaim is 10Gi, but request is 1Ti"):
        await admitted(world, claim("1Ti"), "persistentvolumeclaims")


async def test_pod_updates_are_checked_only_on_resize(world: World) -> None:
    await limit(world, "Container", max={"cpu": "1"})
    big = pod(container(limits={"cpu": "2"}))
    await admitted(world, big, operation=UPDATE, old=big)
    with pytest.raises(Forbidden):
        await admitted(world, big, operation=UPDATE, old=big, subresource="resize")
