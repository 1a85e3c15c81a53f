"""Build CustomResourceDefinitions of the Cluster API category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.schema import Schema, record
from herder.engine.meta.kinds import Kind, Object

PLAIN = {"type": "string"}
WIDE = 10  # priority of columns shown only by `-o wide`


def definition(
    kind: Kind,
    description: str,
    *,
    schema: Mapping[str, Schema],
    columns: Sequence[Object],
    labels: Mapping[str, str],
    short: Sequence[str] = (),
    subresources: Object | None = None,
    metadata_required: bool = False,
) -> Object:
    """Build a definition; `schema` has the properties besides apiVersion, kind and metadata, as `record`
    takes them.
    """
    metadata = "metadata!" if metadata_required else "metadata"
    root = record({"apiVersion": PLAIN, "kind": PLAIN, metadata: {"type": "object"}, **schema}, description)
    names: Object = {
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "categories": ["cluster-api"],
    }
    if short:
        names["shortNames"] = list(short)
    version: Object = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "additionalPrinterColumns": list(columns),
        "subresources": subresources or {},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}", "labels": dict(labels)},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
            "conversion": {"strategy": "None"},
        },
    }


STATUS: Object = {"status": {}}


def scale(*, selector: bool = True) -> Object:
    """Return the status and scale subresources of a kind with replicas."""
    paths = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    return STATUS | {"scale": paths | ({"labelSelectorPath": ".status.selector"} if selector else {})}


def column(name: str, path: str, *, type: str = "string", wide: bool = False) -> Object:
    shown: Object = {"name": name, "type": type, "jsonPath": path}
    return shown | {"priority": WIDE} if wide else shown


def count(name: str, path: str, *, wide: bool = False) -> Object:
    return column(name, path, type="integer", wide=wide)


def condition_column(name: str, type_: str, *, wide: bool = False) -> Object:
    return column(name, f'.status.conditions[?(@.type=="{type_}")].status', wide=wide)


def condition_message_column(name: str, type_: str) -> Object:
    return column(name, f'.status.conditions[?(@.type=="{type_}")].message')


READY_COLUMNS = (condition_column("Ready", "Ready"), condition_message_column("Reason", "Ready"))
PAUSED = condition_column("Paused", "Paused", wide=True)
AGE = column("Age", ".metadata.creationTimestamp", type="date")
CLUSTER = column("Cluster", ".spec.clusterName")
PHASE = column("Phase", ".status.phase")
