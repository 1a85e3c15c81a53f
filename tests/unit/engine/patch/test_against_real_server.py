"""The functions under test and a real kube-apiserver give the same answers to the same requests."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.unit.engine.patch.kinds import widget
from tests.unit.engine.patch.servers import WIDGETS, ModelServer, RealServer, Request, comparable
from tests.unit.engine.patch.strategies import HISTORIES

NUMBERS = itertools.count()
RUN = uuid.uuid4().hex[:8]


def write_both(real: RealServer, model: ModelServer, request: Request, name: str) -> tuple[Any, Any]:
    """Return the answers of both servers."""
    body = json.loads(json.dumps(request.body))
    if isinstance(body, dict) and "kind" in body:
        body["metadata"]["name"] = name
        if request.verb == "update":
            _, current = real.call("GET", f"{WIDGETS}/{name}")
            body["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
    request = replace(request, body=body)
    return comparable(real.write(request, WIDGETS, name)), comparable(model.write(request))


def replay(real: RealServer, history: list[Request]) -> None:
    name = f"w-{RUN}-{next(NUMBERS)}"
    model = ModelServer()
    for request in history:
        theirs, ours = write_both(real, model, request, name)
        assert ours == theirs, request
        if model.live is None:
            return


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(HISTORIES)
def test_any_history_of_writes_leaves_the_same_object_and_owners(real_server: RealServer, history: list) -> None:
    replay(real_server, history)


EVERYTHING = widget(
    replicas=1,
    title="t",
    on=True,
    ratio=1.5,
    size="1",
    granular={"a": "1"},
    atomic={"a": "1"},
    struct={"a": "x"},
    atomicStruct={"a": "y"},
    set=["a", "b"],
    numbers=[2, 10, 1],
    list=["x"],
    named=[{"name": "n", "value": "v"}],
    ports=[{"port": 80}, {"port": 80, "protocol": "UDP", "tags": {"k": "v"}}],
    free={"x": {"y": [1, {"z": 2}]}},
    embedded={"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"q": 1}},
)


def test_conflicts_force_and_removed_fields_are_handled_alike(real_server: RealServer) -> None:
    replay(
        real_server,
        [
            Request("create", "creator", EVERYTHING),
            Request("merge", "merger", {"spec": {"replicas": 2, "set": ["b", "c"]}}),
            Request("apply", "one", widget(replicas=3)),
            Request("apply", "one", widget(replicas=3, title="t2"), force=True),
            Request("apply", "one", widget(title="t3", set=["z"]), force=True),
            Request("apply", "two", EVERYTHING, force=True),
            Request("apply", "one", widget()),
            Request("apply", "two", widget(ports=[{"port": 80, "protocol": "UDP"}])),
            Request("apply", "two", widget()),
        ],
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"unknown": 1},
        {"set": ["a", "a"]},
        {"set": [{}]},
        {"set": [["x"]]},
        {"set": [None]},
        {"ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]},
        {"replicas": "x"},
        {"replicas": {}},
        {"title": 5},
        {"title": ["x"]},
        {"on": "yes"},
        {"struct": [1]},
        {"struct": "x"},
        {"list": {"a": 1}},
        {"named": [{"value": "x"}]},
        {"named": ["x"]},
        {"named": [None]},
        {"named": [{"name": "a", "value": 1}, {"name": "b", "other": True}]},
        {"embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}},
    ],
)
def test_an_invalid_configuration_is_rejected_alike(real_server: RealServer, spec: dict[str, Any]) -> None:
    replay(real_server, [Request("create", "creator", widget()), Request("apply", "one", widget(**spec))])


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"managedFields": []}},
        {"metadata": {"managedFields": [{}]}},
        {"metadata": {"managedFields": [{"manager": "x", "operation": "Dance"}]}},
        {"metadata": {"managedFields": None}},
        {
            "metadata": {
                "managedFields": [
                    {
                        "manager": "x",
                        "operation": "Apply",
                        "apiVersion": "patch.test/v1",
                        "fieldsType": "FieldsV1",
                        "fieldsV1": {"f:spec": {'k:{ "b":1,"a":2.0}': {}, "f:title": {".": {}}, "z:later": {}}},
                    }
                ]
            }
        },
    ],
)
def test_managed_fields_sent_by_a_client_are_handled_alike(real_server: RealServer, patch: dict[str, Any]) -> None:
    replay(
        real_server,
        [
            Request("create", "creator", widget(replicas=1)),
            Request("merge", "meddler", patch),
            Request("merge", "merger", {"spec": {"title": "u"}}),
            Request("apply", "one", widget(replicas=1)),
            Request("apply", "one", widget(replicas=2)),
        ],
    )


def test_many_update_managers_are_merged_alike(real_server: RealServer) -> None:
    updates = [Request("merge", f"m{n:02}", {"spec": {"granular": {f"k{n}": "v"}}}) for n in range(13)]
    name = f"w-{RUN}-{next(NUMBERS)}"
    model = ModelServer()
    write_both(real_server, model, Request("apply", "one", widget(granular={})), name)
    for update in updates:
        theirs, ours = write_both(real_server, model, update, name)
        # The clocks of the two servers differ, so the oldest entries may differ, but not their number.
        assert len(theirs[3]) == len(ours[3])
        assert sum(entry["manager"] == "ancient-changes" for entry in ours[3]) == sum(
            entry["manager"] == "ancient-changes" for entry in theirs[3]
        )


def test_kubectl_takes_over_client_side_applied_fields(real_server: RealServer) -> None:
    last = json.dumps(widget(replicas=1, title="a"))
    first = widget(replicas=1, title="b")
    first["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": last}
    replay(
        real_server,
        [
            Request("create", "kubectl-client-side-apply", first),
            Request("apply", "kubectl", widget(replicas=2)),
            Request("apply", "kubectl", widget(replicas=2, title="c")),
            Request("apply", "other", widget(replicas=3)),
        ],
    )


@pytest.mark.parametrize("operations", [
    [{"op": "test", "path": "/spec/replicas", "value": 2}],
    [{"op": "add", "path": "/a/b", "value": 2}],
    [{"op": "remove", "path": "/spec/none"}],
    [{"op": "add", "path": "/spec/title", "value": "x"}, {"op": "test", "path": "/spec/title", "value": "x"}],
    [{"op": "replace", "path": "/spec/title", "value": "x"}],
    {"op": "x"}, ["x"], [{"op": 1}], [{"op": "nop"}], None,
    [{"op": "test", "path": "/spec/replicas", "value": 1}] * 10001,
])  # fmt: skip
def test_json_patches_have_the_same_result(real_server: RealServer, operations: Any) -> None:
    replay(real_server, [Request("create", "creator", widget(replicas=1)), Request("json", "patcher", operations)])
