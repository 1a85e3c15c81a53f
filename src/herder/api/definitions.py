"""Build CustomResourceDefinitions of kinds with one served and stored version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.schema import Schema, record, string
from herder.engine.meta.kinds import Kind, Object


def root(fields: Mapping[str, Schema], description: str) -> Schema:
    """Return the schema of an object: its own fields next to apiVersion, kind and metadata."""
    common = {
        "apiVersion": string("Group and version of the schema of this object."),
        "kind": string("Kind of this object."),
        "metadata": {"type": "object"},  # API servers add its description, and allow no other
    }
    return record({**common, **fields}, description)


def definition(
    kind: Kind,
    schema: Schema,
    *,
    columns: Sequence[Object] = (),
    subresources: Object | None = None,
    labels: Mapping[str, str] | None = None,
    categories: Sequence[str] = (),
    short: Sequence[str] = (),
) -> Object:
    """Build the CustomResourceDefinition of a kind; `short` are its short names."""
    version: Object = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if columns:
        version["additionalPrinterColumns"] = list(columns)
    if subresources:
        version["subresources"] = subresources
    names: Object = {
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
    }
    names |= {key: list(values) for key, values in (("categories", categories), ("shortNames", short)) if values}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", **({"labels": dict(labels)} if labels else {})},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }
