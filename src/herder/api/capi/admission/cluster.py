"""Validation of Cluster: its references are required and cannot be removed. Cluster has no defaults."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.capi.admission.checks import cidr_blocks, is_defined
from herder.api.capi.admission.values import section, value
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value
from herder.engine.meta.kinds import Object

_PARTS = ("infrastructureRef", "controlPlaneRef")


def validate(obj: Object, old: Object | None) -> list[FieldError]:
    return [*_name(obj), *_parts(obj, old), *_network(obj), *_topology(obj, old)]


def _name(obj: Object) -> Iterator[FieldError]:
    """The name must be a valid label value, because all objects of the cluster carry it as a label."""
    name = obj["metadata"].get("name") or ""
    for complaint in names.label_value(name):
        yield invalid_value("metadata.name", name, f"must be a valid label value {complaint}")


def _parts(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if not any(is_defined(section(obj, "spec", part)) for part in _PARTS) and not section(obj, "spec", "topology"):
        yield forbidden_field(
            "spec", "one of spec.controlPlaneRef, spec.infrastructureRef or spec.topology must be set"
        )
    for part in _PARTS:
        if old is not None and is_defined(section(old, "spec", part)) and not is_defined(section(obj, "spec", part)):
            yield forbidden_field(f"spec.{part}", "cannot be removed")


def _network(obj: Object) -> Iterator[FieldError]:
    for part in ("pods", "services"):
        blocks = value(obj, "spec", "clusterNetwork", part, "cidrBlocks") or []
        yield from cidr_blocks(blocks, f"spec.clusterNetwork.{part}.cidrBlocks")


def _topology(obj: Object, old: Object | None) -> Iterator[FieldError]:
    if section(obj, "spec", "topology"):
        yield forbidden_field("spec.topology", "can be set only if the ClusterTopology feature flag is enabled")
    elif old is not None and section(old, "spec", "topology"):
        yield forbidden_field("spec.topology", "cannot be removed from an existing Cluster")
