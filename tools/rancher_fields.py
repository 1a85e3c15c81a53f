"""List the fields of Rancher's provisioning Cluster, from its CustomResourceDefinition.

git -C RANCHER show REVISION:pkg/crds/yaml/generated/provisioning.cattle.io_clusters.yaml |
    python -m tools.rancher_fields REVISION
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from herder.engine.meta.kinds import Object

LIST = Path(__file__).parents[1] / "tests" / "data" / "rancher_cluster_fields.txt"


def field_paths(schema: Object, path: str = "spec") -> Iterator[str]:
    """Paths of all fields of a schema. Lists and maps of plain values, and objects of any content, are one field."""
    items = schema.get("items") or schema.get("additionalProperties")
    if schema.get("properties"):
        for name, inner in sorted(schema["properties"].items()):
            yield from field_paths(inner, f"{path}.{name}")
    elif isinstance(items, dict) and items.get("properties"):
        yield from field_paths(items, f"{path}[]")
    else:
        yield path


def listed_paths() -> list[str]:
    return [line for line in LIST.read_text().splitlines() if not line.startswith("#")]


def spec_schema(definition: Object) -> Object:
    (version,) = definition["spec"]["versions"]
    spec: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="revision of Rancher that the definition is from")
    revision = parser.parse_args().revision
    paths = field_paths(spec_schema(yaml.safe_load(sys.stdin)))
    head = (
        f"# Fields of clusters.provisioning.cattle.io v1 in rancher/rancher {revision}: python -m tools.rancher_fields"
    )
    LIST.write_text("\n".join((head, *paths)) + "\n")


if __name__ == "__main__":
    main()
