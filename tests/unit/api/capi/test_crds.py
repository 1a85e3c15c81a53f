"""Herder's definitions match upstream's in every facet of every field, except descriptions and what is listed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from herder.api.capi.crds import CRDS
from herder.api.capi.crds.clusters import CLUSTER
from herder.api.capi.crds.schema import record, string
from tests.support.peers import peer

# Optional fields of upstream's next release, which its own tools already look for.
ADDED = {
    "machines": {"status.deletion.waitForPreDrainHookStartTime", "status.deletion.waitForPreTerminateHookStartTime"},
    "machinesets": {"status.versions"},
    "machinedeployments": {"status.versions"},
    "machinepools": {"status.versions"},
    "clusters": {"status.controlPlane.versions", "status.workers.versions"},
}
# No controller acts on ClusterClasses, so their schema accepts any content.
NOT_VALIDATED = {"clusterclasses": {"spec", "status"}}


def plural(definition: Any) -> str:
    return str(definition["spec"]["names"]["plural"])


@pytest.fixture(params=CRDS, ids=plural)
def ours(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def upstream(ours: Any) -> Any:
    group = ours["spec"]["group"]
    path = peer("capi-core").parent / "config" / "crd" / "bases" / f"{group}_{plural(ours)}.yaml"
    return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def test_fields_have_the_same_facets_as_upstream(ours: Any, upstream: Any) -> None:
    added, not_validated = ADDED.get(plural(ours), set()), NOT_VALIDATED.get(plural(ours), set())
    ours_by_path = {
        path: facets for path, facets in fields(schema_of(ours)) if not is_under(path, added | not_validated)
    }
    upstreams_by_path = {
        path: facets for path, facets in fields(schema_of(upstream)) if not is_under(path, not_validated)
    }
    assert ours_by_path == upstreams_by_path


def test_names_scope_subresources_and_columns_match_upstream(ours: Any, upstream: Any) -> None:
    assert ours["metadata"]["name"] == upstream["metadata"]["name"]
    assert {**ours["spec"], "versions": [], "conversion": None} == {
        **upstream["spec"],
        "versions": [],
        "conversion": None,
    }
    assert [without_description(entry) for entry in version_of(ours)["additionalPrinterColumns"]] == [
        without_description(entry) for entry in version_of(upstream)["additionalPrinterColumns"]
    ]
    assert version_of(ours)["subresources"] == version_of(upstream)["subresources"]


def test_every_definition_of_a_served_group_exists() -> None:
    folder = peer("capi-core").parent / "config" / "crd" / "bases"
    groups = {definition["spec"]["group"] for definition in CRDS}
    expected = {path.stem for path in folder.glob("*.yaml") if path.stem.split("_")[0] in groups}
    assert {f"{definition['spec']['group']}_{plural(definition)}" for definition in CRDS} == expected


def test_only_v1beta2_is_served_and_nothing_is_converted(ours: Any) -> None:
    (version,) = ours["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1beta2", True, True)
    assert ours["spec"]["conversion"] == {"strategy": "None"}


def test_definitions_have_the_labels_of_clusterctl(ours: Any) -> None:
    assert ours["metadata"]["labels"] == {"cluster.x-k8s.io/provider": "cluster-api", "clusterctl.cluster.x-k8s.io": ""}


def test_an_exclamation_mark_makes_a_property_required() -> None:
    assert record({"a!": string(), "b": string(max=1)}) == {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "string"}, "b": {"type": "string", "maxLength": 1}},
    }


def test_fields_have_descriptions() -> None:
    spec = schema_of(CLUSTER)["properties"]["spec"]["properties"]
    assert spec["controlPlaneEndpoint"]["description"] == "Address of the cluster's API server."


def version_of(definition: Any) -> Any:
    return next(version for version in definition["spec"]["versions"] if version["name"] == "v1beta2")


def schema_of(definition: Any) -> Any:
    return version_of(definition)["schema"]["openAPIV3Schema"]


def fields(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each field by its path (`[]` for items, `{}` for values of a map), with its own facets."""
    inner = ("properties", "items", "additionalProperties", "required")
    required = {"required": sorted(schema["required"])} if "required" in schema else {}
    yield path, {name: value for name, value in without_description(schema).items() if name not in inner} | required
    for name, child in schema.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}".lstrip("."))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from fields(schema[key], path + mark)


def is_under(path: str, roots: set[str]) -> bool:
    return any(path == root or path.startswith((f"{root}.", f"{root}[")) for root in roots)


def without_description(entry: Any) -> Any:
    return {name: value for name, value in entry.items() if name != "description"}
