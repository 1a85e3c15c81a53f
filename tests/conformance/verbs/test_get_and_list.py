"""Get and list: selectors, order, paging and resourceVersion."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.conftest import Widgets
from tests.conformance.objects import pod, secret
from tests.support.api import Api


async def fill(api: Api, *names: str, **labels: str) -> list[Any]:
    return [await api.create("secrets", secret(name, labels=labels)) for name in names]


async def test_get_returns_the_stored_object(api: Api) -> None:
    created = await api.create("secrets", secret("one", key="value"))
    assert await api.read(api.at("secrets", "one")) == created
    assert created["data"] == {"key": "dmFsdWU="}
    assert created["type"] == "Opaque"
    assert created["metadata"]["namespace"] == api.namespace


async def test_get_of_an_unknown_name_is_not_found(api: Api) -> None:
    answer = await api.get(api.at("secrets", "nobody"))
    assert answer.failure == (404, "NotFound", 'secrets "nobody" not found')
    assert answer.body["details"] == {"name": "nobody", "kind": "secrets"}
    assert answer.body["status"] == "Failure"
    assert answer.body["metadata"] == {}


async def test_not_found_names_the_group(api: Api) -> None:
    answer = await api.get(api.at("apps/v1/deployments", "nobody"))
    assert answer.failure == (404, "NotFound", 'deployments.apps "nobody" not found')
    assert answer.body["details"] == {"name": "nobody", "group": "apps", "kind": "deployments"}


async def test_get_from_a_namespace_that_does_not_exist_is_not_found(api: Api) -> None:
    answer = await api.in_namespace("no-such-place").get("/api/v1/namespaces/no-such-place/secrets/one")
    assert answer.failure == (404, "NotFound", 'secrets "one" not found')


async def test_list_in_a_namespace_that_does_not_exist_is_empty(api: Api) -> None:
    assert (await api.read("/api/v1/namespaces/no-such-place/secrets"))["items"] == []


async def test_lists_are_ordered_by_name(api: Api) -> None:
    await fill(api, "c", "a", "b", "a-1", "a.1", "aa")
    assert await api.names(api.at("secrets")) == ["a", "a-1", "a.1", "aa", "b", "c"]


async def test_list_items_carry_no_kind_but_the_list_does(api: Api) -> None:
    await fill(api, "one")
    found = await api.read(api.at("secrets"))
    assert (found["kind"], found["apiVersion"]) == ("SecretList", "v1")
    assert "kind" not in found["items"][0]
    assert "apiVersion" not in found["items"][0]


async def test_list_items_of_custom_resources_carry_their_kind(api: Api, widgets: Widgets) -> None:
    await api.create(widgets.resource, widgets.named("one"))
    found = await api.read(api.at(widgets.resource))
    assert (found["kind"], found["apiVersion"]) == ("WidgetList", f"{widgets.group}/v1")
    assert found["items"][0]["kind"] == "Widget"


async def test_an_empty_list_has_an_empty_array(api: Api) -> None:
    found = await api.read(api.at("secrets"))
    assert found["items"] == []
    assert int(found["metadata"]["resourceVersion"]) > 0


async def test_lists_of_all_namespaces_are_ordered_by_namespace_and_name(api: Api) -> None:
    other = await api.in_new_namespace()
    for each in (api, other):
        await fill(each, "b", "a", kind=api.namespace)
    found = await api.read(api.cluster("secrets") + f"?labelSelector=kind%3D{api.namespace}")
    seen = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in found["items"]]
    assert seen == sorted(seen)
    assert len(seen) == 4


# --- selectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("tier=web", ["red-web"]),
        ("tier==web", ["red-web"]),
        ("tier!=web", ["blue-db", "bare"]),
        ("tier", ["blue-db", "red-web"]),
        ("!tier", ["bare"]),
        ("tier in (web,db)", ["blue-db", "red-web"]),
        ("tier notin (web)", ["bare", "blue-db"]),
        ("tier in (web,db),color=red", ["red-web"]),
        ("color=red,tier!=web", []),
        (" tier = web ", ["red-web"]),
        ("n>1", ["red-web"]),
        ("n<2", ["blue-db"]),
        ("empty=", ["bare"]),
        ("empty in ()", ["bare"]),
        ("tier in (web,)", ["red-web"]),
        ("", ["bare", "blue-db", "red-web"]),
    ],
)
async def test_label_selectors(api: Api, selector: str, found: list[str]) -> None:
    await fill(api, "red-web", color="red", tier="web", n="2")
    await fill(api, "blue-db", color="blue", tier="db", n="1")
    await fill(api, "bare", empty="")
    quoted = selector.replace(" ", "%20").replace("=", "%3D").replace("!", "%21").replace(">", "%3E")
    assert await api.names(api.at("secrets") + f"?labelSelector={quoted}") == sorted(found)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("=v", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
    ],
)
async def test_an_unparsable_label_selector_is_a_bad_request(api: Api, selector: str, message: str) -> None:
    answer = await api.get(api.at("secrets") + f"?labelSelector={selector.replace(' ', '%20').replace('=', '%3D')}")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert message in answer.message


async def test_an_invalid_value_in_a_label_selector_is_a_bad_request(api: Api) -> None:
    answer = await api.get(api.at("secrets") + "?labelSelector=a%3D-b-")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert 'values[0][a]: Invalid value: "-b-"' in answer.message
    assert "a valid label must be an empty string or consist of alphanumeric characters" in answer.message


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("metadata.name=one", ["one"]),
        ("metadata.name!=one", ["two"]),
        ("metadata.namespace=elsewhere", []),
        ("type=Opaque", ["two"]),
        ("type=kubernetes.io/basic-auth", ["one"]),
        ("type!=Opaque,metadata.name=two", []),
    ],
)
async def test_field_selectors_of_secrets(api: Api, selector: str, found: list[str]) -> None:
    await api.create("secrets", secret("one", username="me") | {"type": "kubernetes.io/basic-auth"})
    await api.create("secrets", secret("two"))
    quoted = selector.replace("=", "%3D").replace("!", "%21")
    assert await api.names(api.at("secrets") + f"?fieldSelector={quoted}") == found


async def test_an_unsupported_field_selector_is_a_bad_request(api: Api) -> None:
    answer = await api.get(api.at("secrets") + "?fieldSelector=data.key%3Dvalue")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "field label not supported: data.key" in answer.message


async def test_an_unparsable_field_selector_is_a_bad_request(api: Api) -> None:
    answer = await api.get(api.at("secrets") + "?fieldSelector=metadata.name")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "invalid selector: 'metadata.name'; can't understand 'metadata.name'" in answer.message


async def test_selectable_fields_of_custom_resources(api: Api, widgets: Widgets) -> None:
    for name, color in (("one", "red"), ("two", "blue")):
        await api.create(widgets.resource, widgets.named(name, {"color": color}))
    await api.create(widgets.resource, widgets.named("plain", {}))
    url = api.at(widgets.resource)
    assert await api.names(url + "?fieldSelector=spec.color%3Dred") == ["one"]
    assert await api.names(url + "?fieldSelector=spec.color%21%3Dred") == ["plain", "two"]
    assert await api.names(url + "?fieldSelector=metadata.name%3Dtwo") == ["two"]
    rejected = await api.get(url + "?fieldSelector=spec.size%3D1")
    assert (rejected.status, rejected.reason) == (400, "BadRequest")
    assert "field label not supported: spec.size" in rejected.message


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName=here", ["bound"]),
        ("spec.restartPolicy=Never", ["bound"]),
        ("status.phase=Pending", ["bound", "free"]),
        ("spec.serviceAccountName=default", ["bound", "free"]),
        ("spec.hostNetwork=false", ["bound", "free"]),
    ],
)
async def test_field_selectors_of_pods(api: Api, selector: str, found: list[str]) -> None:
    await api.until(api.at("serviceaccounts", "default"), lambda answer: answer.status == 200)
    await api.create("pods", pod("free"))
    bound = await api.create("pods", pod("bound", nodeName="here", restartPolicy="Never"))
    assert bound["status"]["phase"] == "Pending"
    assert await api.names(api.at("pods") + f"?fieldSelector={selector.replace('=', '%3D')}") == found


# --- pages ----------------------------------------------------------------------------------------------------------


async def test_pages_report_the_remaining_item_count(api: Api) -> None:
    await fill(api, *"abcde")
    first = await api.read(api.at("secrets") + "?limit=2")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    second = await api.read(api.at("secrets") + f"?limit=2&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert second["metadata"]["remainingItemCount"] == 1
    last = await api.read(api.at("secrets") + f"?limit=2&continue={second['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in last["items"]] == ["e"]
    assert "continue" not in last["metadata"]
    assert "remainingItemCount" not in last["metadata"]
    assert first["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"]


async def test_pages_show_one_consistent_version(api: Api) -> None:
    await fill(api, "a", "b", "c", "d")
    first = await api.read(api.at("secrets") + "?limit=2")
    await fill(api, "bb", "e")
    await api.delete(api.at("secrets", "c"))
    await api.patch(api.at("secrets", "d"), {"metadata": {"labels": {"changed": "yes"}}})
    rest = await api.read(api.at("secrets") + f"?continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "d"]
    assert "labels" not in rest["items"][1]["metadata"]


async def test_pages_with_a_selector_have_no_remaining_item_count(api: Api) -> None:
    await fill(api, "a", "b", "c", odd="no")
    await fill(api, "bb", odd="yes")
    first = await api.read(api.at("secrets") + "?limit=2&labelSelector=odd%3Dno")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert "remainingItemCount" not in first["metadata"]
    rest = await api.read(
        api.at("secrets") + f"?limit=2&labelSelector=odd%3Dno&continue={first['metadata']['continue']}"
    )
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]


async def test_a_complete_page_has_no_continue_token(api: Api) -> None:
    await fill(api, "a", "b")
    found = await api.read(api.at("secrets") + "?limit=2")
    assert "continue" not in found["metadata"]


async def test_an_invalid_continue_token_is_a_bad_request(api: Api) -> None:
    answer = await api.get(api.at("secrets") + "?limit=1&continue=nonsense")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert answer.message.startswith("invalid continue token: continue key is not valid: ")


async def test_continue_and_resource_version_exclude_each_other(api: Api) -> None:
    await fill(api, "a", "b")
    first = await api.read(api.at("secrets") + "?limit=1")
    answer = await api.get(api.at("secrets") + f"?limit=1&resourceVersion=5&continue={first['metadata']['continue']}")
    assert (answer.status, answer.reason) == (400, "BadRequest")
    assert "specifying resource version is not allowed when using continue" in answer.message


# --- resource versions -------------------------------------------------------------------------------------------


async def test_resource_versions_are_increasing_numbers(api: Api) -> None:
    created = await fill(api, "a", "b", "c")
    versions = [int(one["metadata"]["resourceVersion"]) for one in created]
    assert versions == sorted(set(versions))
    listed = await api.read(api.at("secrets"))
    assert int(listed["metadata"]["resourceVersion"]) >= versions[-1]


async def test_a_list_at_version_zero_accepts_any_state(api: Api) -> None:
    await fill(api, "a")
    assert await api.names(api.at("secrets") + "?resourceVersion=0") in ([], ["a"])


async def test_a_list_not_older_than_a_version_includes_its_write(api: Api) -> None:
    created = await fill(api, "a")
    version = created[0]["metadata"]["resourceVersion"]
    query = f"?resourceVersion={version}&resourceVersionMatch=NotOlderThan"
    assert await api.names(api.at("secrets") + query) == ["a"]


async def test_a_list_at_an_exact_version_is_historical(api: Api) -> None:
    first, *_ = await fill(api, "a")
    await fill(api, "b")
    version = first["metadata"]["resourceVersion"]
    found = await api.read(api.at("secrets") + f"?resourceVersion={version}&resourceVersionMatch=Exact")
    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]
    assert found["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("resourceVersionMatch=Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (
            "resourceVersion=0&resourceVersionMatch=Exact",
            'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        ("resourceVersion=5&resourceVersionMatch=Sometimes", "supported values"),
        ("resourceVersion=abc", "invalid resource version"),
    ],
)
async def test_invalid_combinations_of_resource_version_are_rejected(api: Api, query: str, message: str) -> None:
    answer = await api.get(api.at("secrets") + f"?{query}")
    assert answer.status in (400, 422)
    assert message.lower() in answer.message.lower()


async def test_a_list_from_the_future_times_out(api: Api) -> None:
    answer = await api.get(api.at("secrets") + "?resourceVersion=999999999999")
    assert (answer.status, answer.reason) == (504, "Timeout")
    assert re.match(r"Timeout: Too large resource version: 999999999999, current: \d+", answer.message)
    assert answer.causes == [("ResourceVersionTooLarge", "", "Too large resource version")]


async def test_get_at_version_zero_accepts_any_state(api: Api) -> None:
    created = (await fill(api, "a"))[0]
    version = created["metadata"]["resourceVersion"]
    assert await api.read(api.at("secrets", "a") + f"?resourceVersion={version}") == created


async def test_get_with_an_older_version_returns_the_current_state(api: Api) -> None:
    """A get with an older resourceVersion returns the current state; kube-apiserver's watch cache may be behind."""
    created = (await fill(api, "a"))[0]
    await api.patch(api.at("secrets", "a"), {"metadata": {"labels": {"new": "yes"}}})
    url = api.at("secrets", "a") + f"?resourceVersion={created['metadata']['resourceVersion']}"
    await api.until(url, lambda answer: answer.expect(200)["metadata"].get("labels") == {"new": "yes"})
