"""Tables, and the columns that CRDs declare."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from herder.engine.apiserver.builtin import resources
from herder.engine.apiserver.crds import resource_from_crd
from herder.engine.apiserver.registry.resources import Registry, Resource
from herder.engine.apiserver.tables import render
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupResource, Object
from tests.unit.engine.apiserver.crds.samples import NOW, definition


def widget(**spec: Any) -> Object:
    created = (NOW - timedelta(minutes=5, seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "w", "resourceVersion": "7", "creationTimestamp": created}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": spec}


def widget_resource(crd: Object | None = None) -> Resource:
    return resource_from_crd(crd or definition())


def cells(obj: Object, *columns: Object) -> list[Any]:
    crd = definition()
    if columns:
        crd["spec"]["versions"][0]["additionalPrinterColumns"] = list(columns)
    row: list[Any] = render(widget_resource(crd), "v1", [obj], now=NOW)["rows"][0]["cells"]
    return row


def test_a_list_carries_its_metadata_and_columns() -> None:
    table = render(widget_resource(), "v1", [widget(size=1)], now=NOW, list_metadata={"resourceVersion": "9"})
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"] == {"resourceVersion": "9"}
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Size", "Ready", "When", "Age"]
    assert table["columnDefinitions"][1]["description"] == "how big"
    assert table["columnDefinitions"][3]["priority"] == 1


def test_a_table_of_one_object_has_its_resource_version() -> None:
    assert render(widget_resource(), "v1", [widget()], now=NOW)["metadata"] == {"resourceVersion": "7"}


def test_later_events_of_a_watch_have_no_columns() -> None:
    assert render(widget_resource(), "v1", [widget()], now=NOW, with_columns=False)["columnDefinitions"] is None


def test_rows_include_the_object_as_requested() -> None:
    obj = widget(size=1)

    def included(what: str) -> Any:
        return render(widget_resource(), "v1", [obj], now=NOW, include_object=what)["rows"][0]["object"]

    assert included("None") is None
    assert included("Object") == obj
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    assert included("Metadata") == partial
    assert included("") == partial


def test_other_include_object_values_are_rejected() -> None:
    with pytest.raises(BadRequest, match="must be 'Metadata', 'Object', 'None', or empty"):
        render(widget_resource(), "v1", [], now=NOW, include_object="Some")


def test_columns_are_read_by_their_json_paths() -> None:
    obj = widget(size=4, when="2026-01-02T01:04:05Z") | {
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}
    }
    assert cells(obj) == ["w", 4, "True", "120m", "5m30s"]


def test_missing_values_are_null() -> None:
    assert cells(widget()) == ["w", None, None, None, "5m30s"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", ["a", "b"], '["a","b"]'),
        ("string", {"b": 1, "a": True}, '{"a":true,"b":1}'),
        ("string", True, "true"),
        ("string", 3, "3"),
        ("string", 1.5, "1.5"),
        ("string", None, None),
        ("integer", 3.7, 3),
        ("integer", "3", None),
        ("number", 3, 3),
        ("number", 1.5, 1.5),
        ("boolean", True, True),
        ("boolean", "true", None),
        ("date", "never", "<invalid>"),
        ("date", 3, None),
    ],
)
def test_values_are_converted_to_the_type_of_their_column(kind: str, value: Any, expected: Any) -> None:
    assert cells(widget(x=value), {"name": "X", "type": kind, "jsonPath": ".spec.x"})[1] == expected


def test_only_the_first_of_several_values_is_shown() -> None:
    assert cells(widget(tags=["a", "b"]), {"name": "X", "type": "string", "jsonPath": ".spec.tags[*]"})[1] == "a"


def test_an_invalid_column_path_falls_back_to_names() -> None:
    assert cells(widget(), {"name": "X", "type": "string", "jsonPath": ".spec["}) == ["w"]


def test_a_crd_without_columns_shows_the_age() -> None:
    table = render(widget_resource(), "v1alpha1", [widget()], now=NOW)
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age"]
    assert table["rows"][0]["cells"] == ["w", "5m30s"]


def test_finished_pods_have_a_completed_condition() -> None:
    pods = Registry(resources()).get(GroupResource("", "pods"))
    assert pods is not None
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Succeeded"}}
    (row,) = render(pods, "v1", [pod], now=NOW)["rows"]
    assert row["conditions"] == [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Succeeded",
            "message": "The pod has completed successfully.",
        }
    ]


def test_kinds_without_a_printer_show_the_creation_time() -> None:
    roles = Registry(resources()).get(GroupResource("rbac.authorization.k8s.io", "roles"))
    assert roles is not None
    role = {"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    table = render(roles, "v1", [role], now=NOW)
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Created At"]
    assert table["rows"][0]["cells"] == ["r", "2026-01-01T00:00:00Z"]
