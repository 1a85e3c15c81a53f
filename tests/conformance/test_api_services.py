"""APIService objects of built-in and custom groups."""

from __future__ import annotations

import pytest

from tests.conformance.objects import CRDS, condition, define, definition, spec_schema
from tests.support.api import Api
from tests.support.engines import unique

SERVICES = "apiregistration.k8s.io/v1/apiservices"


@pytest.mark.parametrize(
    ("name", "priorities"),
    [("v1.", (18000, 1)), ("v1.apps", (17800, 15)), ("v2.autoscaling", (17500, 30)), ("v1.batch", (17400, 15))],
)
async def test_built_in_groups_are_local_and_available(api: Api, name: str, priorities: tuple[int, int]) -> None:
    found = (await api.until(api.cluster(SERVICES, name), lambda answer: answer.status == 200)).body
    assert (found["spec"]["groupPriorityMinimum"], found["spec"]["versionPriority"]) == priorities
    assert found["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
    assert condition(found, "Available") == "True"


async def test_custom_groups_follow_their_crds(api: Api) -> None:
    group = f"{unique('served')}.example.com"
    await define(api, definition(group, "gadgets", "Gadget", spec_schema(size={"type": "integer"})))
    url = api.cluster(SERVICES, f"v1.{group}")
    found = (await api.until(url, lambda answer: answer.status == 200)).body
    assert found["spec"] == {"group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100}
    assert found["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "true"}
    await api.delete(api.cluster(CRDS, f"gadgets.{group}"))
    await api.until_gone(url)
