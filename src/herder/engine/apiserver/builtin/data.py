"""The generated facts about built-in kinds, read from disk only when a kind is first used.

`tools/generate_builtins.py` writes one file for each Go package of API types. A file holds the published OpenAPI
definitions and, beside them, what OpenAPI does not say: Go types, protobuf numbers and which zero values JSON omits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources as package_files
from typing import Any

import msgspec

Schema = dict[str, Any]


class StructField(msgspec.Struct, frozen=True, array_like=True):
    json: str  # empty: an embedded struct, whose fields belong to the object around it
    type: str  # Go type expression with short package names: `*int32`, `[]core.v1.Container`
    number: int  # in protobuf; 0 where it has none
    omitted: str  # "e" omitempty, "z" omitzero


class Package(msgspec.Struct, frozen=True):
    definitions: dict[str, Schema]
    structs: dict[str, list[StructField]]
    types: dict[str, str]


class SubresourceRow(msgspec.Struct, frozen=True):
    kind: tuple[str, str, str]
    verbs: tuple[str, ...]
    versions: tuple[str, ...]


class ResourceRow(msgspec.Struct, frozen=True, rename="camel"):
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
    packages: dict[str, str]  # prefix of OpenAPI names -> short package name
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
    """The OpenAPI schema published under a name such as `io.k8s.api.core.v1.Pod`. Raises KeyError."""
    return package(index().packages[name.rpartition(".")[0]]).definitions[name]


def definition_name(struct: str) -> str:
    """`core.v1.Pod` -> `io.k8s.api.core.v1.Pod`."""
    short, _, name = struct.rpartition(".")
    return f"{_prefix_of_package()[short]}.{name}"


# API groups whose Go package has another name than the first label of the group.
_PACKAGE_OF_GROUP = {"": "core"}


def package_of(group: str, version: str) -> str:
    """The short package name for the types of one group and version."""
    return f"{_PACKAGE_OF_GROUP.get(group) or group.partition('.')[0]}.{version}"


class Definitions(Mapping[str, Schema]):
    """All published definitions by name; looking one up loads no more than its package."""

    def __getitem__(self, name: str) -> Schema:
        return definition(name)

    def __iter__(self) -> Iterator[str]:
        for short in index().packages.values():
            yield from package(short).definitions

    def __len__(self) -> int:
        return sum(len(package(short).definitions) for short in index().packages.values())


DEFINITIONS = Definitions()
