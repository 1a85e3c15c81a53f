"""Generated data of built-in kinds, loaded when a kind is first used.

`tools/generate_builtins.py` writes one file per Go package of API types. A file contains the published OpenAPI
definitions and what OpenAPI lacks: Go types, protobuf field numbers and which zero values JSON omits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources as package_files
from typing import Any

import msgspec

Schema = dict[str, Any]


class StructField(msgspec.Struct, frozen=True, array_like=True):
    """A field of a Go struct."""

    json: str  # empty: an embedded struct, whose fields are inlined
    type: str  # Go type expression with short package names: `*int32`, `[]core.v1.Container`
    number: int  # protobuf field number; 0 if it has none
    omitted: str  # "e" omitempty, "z" omitzero


class Package(msgspec.Struct, frozen=True):
    """The types of one Go package."""

    definitions: dict[str, Schema]
    structs: dict[str, list[StructField]]
    types: dict[str, str]


class SubresourceRow(msgspec.Struct, frozen=True):
    """A subresource in the generated discovery data."""

    kind: tuple[str, str, str]
    verbs: tuple[str, ...]
    versions: tuple[str, ...]


class ResourceRow(msgspec.Struct, frozen=True, rename="camel"):
    """A resource in the generated discovery data."""

    group: str
    plural: str
    singular: str
    kind: str
    namespaced: bool
    versions: tuple[str, ...]
    verbs: tuple[str, ...]
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    subresources: dict[str, SubresourceRow]


class Index(msgspec.Struct, frozen=True):
    """The generated index: all resources, and the file of each package."""

    packages: dict[str, str]  # OpenAPI name prefix -> short package name
    resources: list[ResourceRow]


def _read(name: str) -> bytes:
    return (package_files.files(__package__) / "data" / f"{name}.json").read_bytes()


@cache
def index() -> Index:
    return msgspec.json.decode(_read("resources"), type=Index)


@cache
def package(short: str) -> Package:
    return msgspec.json.decode(_read(short), type=Package)


@cache
def _prefix_of_package() -> dict[str, str]:
    return {short: prefix for prefix, short in index().packages.items()}


def definition(name: str) -> Schema:
    """Return the OpenAPI schema of a name such as `io.k8s.api.core.v1.Pod`. Raises KeyError."""
    return package(index().packages[name.rpartition(".")[0]]).definitions[name]


def definition_name(struct: str) -> str:
    """`core.v1.Pod` -> `io.k8s.api.core.v1.Pod`."""
    short, _, name = struct.rpartition(".")
    return f"{_prefix_of_package()[short]}.{name}"


# API groups whose Go package is not named like the first label of the group.
_PACKAGE_OF_GROUP = {"": "core"}


def package_of(group: str, version: str) -> str:
    """Return the short package name of a group version."""
    return f"{_PACKAGE_OF_GROUP.get(group) or group.partition('.')[0]}.{version}"


class Definitions(Mapping[str, Schema]):
    """All published definitions by name. A lookup loads only the definition's package."""

    def __getitem__(self, name: str) -> Schema:
        return definition(name)

    def __iter__(self) -> Iterator[str]:
        for short in index().packages.values():
            yield from package(short).definitions

    def __len__(self) -> int:
        return sum(len(package(short).definitions) for short in index().packages.values())


DEFINITIONS = Definitions()
