"""The resource that a CRD serves."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.crds import resource_from_crd
from herder.engine.apiserver.registry.resources import Resource, ScalePaths
from herder.engine.meta.errors import BadRequest, Forbidden
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.crds.samples import context, definition


@pytest.fixture
def widgets() -> Resource:
    return resource_from_crd(definition())


def widget(**fields: Any) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, **fields}


def test_names_versions_and_subresources_come_from_the_definition(widgets: Resource) -> None:
    assert (widgets.group, widgets.plural, widgets.singular) == ("example.com", "widgets", "widget")
    assert (widgets.kind, widgets.list_kind, widgets.namespaced) == ("Widget", "WidgetList", True)
    assert (widgets.short_names, widgets.categories, widgets.custom) == (("wd",), ("all",), True)
    assert (list(widgets.versions), widgets.storage_version) == (["v1", "v1alpha1"], "v1")
    assert widgets.versions["v1"].status
    assert widgets.versions["v1"].scale == ScalePaths(".spec.replicas", ".status.replicas")
    assert widgets.versions["v1"].selectable == (".spec.color",)
    assert not widgets.versions["v1alpha1"].status


def test_accepted_names_take_precedence_over_spec_names() -> None:
    crd = definition()
    crd["spec"]["names"]["shortNames"] = ["taken"]
    assert resource_from_crd(crd).short_names == ("wd",)


def test_a_deprecated_version_warns_with_its_replacement(widgets: Resource) -> None:
    expected = "example.com/v1alpha1 Widget is deprecated; use example.com/v1 Widget"
    assert widgets.versions["v1alpha1"].deprecation == expected
    assert widgets.versions["v1"].deprecation == ""


def test_a_definition_may_set_its_deprecation_warning() -> None:
    crd = definition()
    crd["spec"]["versions"][1]["deprecationWarning"] = "gone soon"
    assert resource_from_crd(crd).versions["v1alpha1"].deprecation == "gone soon"


def test_unknown_fields_are_dropped_and_reported(widgets: Resource) -> None:
    obj = widget(spec={"size": 1, "what": 2}, zz=1)
    obj["metadata"]["odd"] = True
    decoded, unknown = widgets.versions["v1"].model.decode(obj)
    assert decoded == widget(spec={"size": 1})
    assert unknown == ['unknown field "metadata.odd"', 'unknown field "spec.what"', 'unknown field "zz"']


def test_preserved_unknown_fields_are_kept(widgets: Resource) -> None:
    obj = widget(spec={"raw": {"any": ["thing"]}})
    assert widgets.versions["v1"].model.decode(obj) == (obj, [])
    free = widget(apiVersion="example.com/v1alpha1", anything={"goes": 1})
    assert widgets.versions["v1alpha1"].model.decode(free) == (free, [])


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"labels": {"x": 1}}, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
        ({"name": 1}, "json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"),
        ("foo", "json: cannot unmarshal string into Go value of type v1.ObjectMeta"),
        (
            {"finalizers": "x"},
            "json: cannot unmarshal string into Go struct field ObjectMeta.finalizers of type []string",
        ),
        (
            {"creationTimestamp": "x"},
            'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"',
        ),
    ],
)
def test_metadata_of_the_wrong_type_is_rejected(widgets: Resource, metadata: Any, why: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        widgets.versions["v1"].model.decode(widget(metadata=metadata))
    assert refusal.value.message == f'Widget in version "v1" cannot be handled as a Widget: {why}'


def test_defaults_are_filled_in(widgets: Resource) -> None:
    obj = widget(spec={})
    widgets.versions["v1"].model.default(obj)
    assert obj["spec"] == {"size": 3}


def test_the_schema_is_enforced(widgets: Resource) -> None:
    (problem,) = widgets.versions["v1"].model.validate(widget(spec={"size": -1}), None)
    assert problem.field == "spec.size"


def test_a_changed_status_does_not_compile_the_schema_again() -> None:
    first, second = definition(), definition()
    second["status"]["conditions"] = []
    assert (
        resource_from_crd(first).versions["v1"].model.merge_type
        is resource_from_crd(second).versions["v1"].model.merge_type
    )


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (widget(spec={"replicas": -1}), ".spec.replicas: Invalid value: -1: should be a non-negative integer"),
        (
            widget(spec={"replicas": 2**31}),
            ".spec.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647",
        ),
        (
            widget(spec="x"),
            ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, "
            "expected map[string]interface{}",
        ),
        (
            widget(spec={"replicas": "x"}),
            ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
        ),
    ],
)
def test_replica_counts_must_be_non_negative_integers(widgets: Resource, obj: Object, expected: str) -> None:
    assert expected in [str(problem) for problem in widgets.versions["v1"].model.validate(obj, None)]


def test_a_status_write_does_not_validate_spec_replicas(widgets: Resource) -> None:
    obj = widget(spec={"replicas": -1})
    assert widgets.versions["v1"].model.validate(obj, obj, subresource="status") == []


def test_finalizers_should_have_a_domain(widgets: Resource) -> None:
    obj = widget()
    obj["metadata"]["finalizers"] = ["bare", "example.com/good", "half.example.com", "orphan"]
    found_warnings = list(widgets.strategy.warnings(obj, None))
    assert found_warnings == [
        'metadata.finalizers: "bare": prefer a domain-qualified finalizer name to avoid accidental conflicts with '
        "other finalizer writers",
        'metadata.finalizers: "half.example.com": prefer a domain-qualified finalizer name including a path (/) to '
        "avoid accidental conflicts with other finalizer writers",
    ]
    assert list(widgets.strategy.warnings(obj, obj)) == []


def test_creates_are_rejected_while_the_definition_terminates() -> None:
    crd = definition()
    crd["status"]["conditions"].append({"type": "Terminating", "status": "True"})
    with pytest.raises(Forbidden) as refusal:
        resource_from_crd(crd).strategy.prepare_create(widget(), context())
    assert refusal.value.message == (
        'widgets.example.com "w" is forbidden: create not allowed while custom resource definition is terminating'
    )
