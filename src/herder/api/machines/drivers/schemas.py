"""Generate DynamicSchemas from a driver's flags: fields of its machines and credentials, and the registries of drivers.

Integers are strings in schemas, as upstream has them, so that upstream's objects are valid here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from herder.api.machines.drivers import known
from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.engine.meta.kinds import Object

Field = Object

CREATE_FLAGS = "machine.herder.io/create-flags"
"""Annotation of a driver's schema: the flags that a downloaded driver reported, so that it need not be run again."""

RESERVED = frozenset({"apiVersion", "kind", "metadata", "spec", "status", "common", "providerID"})
"""Fields of the kinds themselves, which no flag may be named."""

_TYPES = {FlagType.STRING: "string", FlagType.INT: "string", FlagType.BOOL: "boolean", FlagType.LIST: "array[string]"}
_DEFAULT_REGION = {"type": "string", "create": True, "update": True, "dynamicField": True}


class UnusableFlags(ValueError):
    """The flags of a driver cannot become fields; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema with one field per driver."""

    name: str
    embed_type: str
    suffix: str  # suffix of its fields, after the driver's name
    update: bool = True

    def key(self, driver: str) -> str:
        return f"{driver}{self.suffix}"

    def entry(self, driver: str) -> Field:
        field: Field = {"type": self.key(driver).lower(), "create": True, "nullable": True}
        return field | {"update": True} if self.update else field

    def with_entry(self, driver: str) -> Object:
        """Return the schema with one entry, for server-side apply; entries of other drivers are kept."""
        entries = schema(self.name, {self.key(driver): self.entry(driver)})
        return {**entries, "spec": {**entries["spec"], "embed": True, "embedType": self.embed_type}}


NODE = Registry("nodeconfig", "node", "Config", update=False)
NODE_TEMPLATE = Registry("nodetemplateconfig", "nodeTemplate", "Config")
CREDENTIAL = Registry("credentialconfig", "cloudCredential", "credentialConfig")
REGISTRIES = (NODE, NODE_TEMPLATE, CREDENTIAL)
REGISTRY_NAMES = frozenset(registry.name for registry in REGISTRIES)


def config_schema_name(driver: str) -> str:
    return f"{driver}config"


def credential_schema_name(driver: str) -> str:
    return f"{driver}credentialconfig"


def fields_of(schema_object: Object | None) -> dict[str, Field]:
    return ((schema_object or {}).get("spec") or {}).get("resourceFields") or {}


def active_driver(registry: Object | None, schema_name: str) -> str | None:
    """Return the driver whose machine schema this is, if it is registered in the node template registry."""
    keys = fields_of(registry)
    key = next((key for key in keys if key.lower() == schema_name and key.endswith(NODE_TEMPLATE.suffix)), None)
    return key.removesuffix(NODE_TEMPLATE.suffix) if key is not None else None


# --- fields ---------------------------------------------------------------------------------------------------------


def machine_fields(flags: Iterable[Flag], node_driver: Object) -> dict[str, Field]:
    """Return the fields of the driver's machines. Raises `UnusableFlags`."""
    passwords = known.password_fields(node_driver)
    contents = {path: content for content, path in known.file_aliases(node_driver).items()}
    fields: dict[str, Field] = {}
    for flag in flags:
        name = field_name(flag.name)
        field = _field(flag)
        if name in contents:
            name = contents[name]
            field["description"] = f"The content of the file for --{flag.name}"
        if name in RESERVED or name in fields:
            raise UnusableFlags(
                f'flag --{flag.name} cannot become a field; "{name}" is reserved or used by another flag'
            )
        if name in passwords:
            field["type"] = "password"
        fields[name] = field
    return dict(sorted(fields.items()))


def credential_fields(fields: Mapping[str, Field], node_driver: Object) -> dict[str, Field]:
    """Return those of a driver's fields that belong in its cloud credentials."""
    credential = known.credential_fields(node_driver)
    found: dict[str, Field] = {}
    for name in credential.all:
        if name not in fields:
            continue  # some NodeDrivers name fields that only other versions of the driver have
        field = dict(fields[name])
        if name not in credential.optional:
            field["required"] = True
        if name in credential.defaults:
            field["default"] = {"stringValue": credential.defaults[name]}
        found[name] = field
    if known.driver_name(node_driver) == "amazonec2":
        found["defaultRegion"] = {**_DEFAULT_REGION, "description": "The region that is offered first"}
    return dict(sorted(found.items()))


def field_name(flag: str) -> str:
    """`amazonec2-ssh-keypath` → sshKeypath."""
    _, dash, rest = flag.partition("-")
    words = rest.split("-")
    if not dash or not all(words):
        raise UnusableFlags(f"flag --{flag} cannot become a field; it must be named <driver>-<flag>")
    return words[0] + "".join(word[:1].upper() + word[1:] for word in words[1:])


def _field(flag: Flag) -> Field:
    field: Field = {
        "type": _TYPES[flag.type],
        "create": True,
        "update": True,
        "description": flag.usage or _default_description(flag),
    }
    if flag.type is FlagType.LIST:
        field["nullable"] = True
    default = _default(flag)
    return field | {"default": default} if default else field


def _default_description(flag: Flag) -> str:
    return f"--{flag.name}" + (f" (environment variable {flag.env})" if flag.env else "")


def _default(flag: Flag) -> Object:
    match flag.type:
        case FlagType.STRING | FlagType.INT:
            return {"stringValue": str(flag.default)}
        case FlagType.BOOL:
            return {"boolValue": bool(flag.default)}
        case FlagType.LIST:
            assert isinstance(flag.default, tuple | str)
            return {"stringSliceValue": list(flag.default)} if flag.default else {}


# --- objects --------------------------------------------------------------------------------------------------------


def schema(name: str, fields: Mapping[str, Field]) -> Object:
    return {
        "apiVersion": DYNAMIC_SCHEMA.api_version,
        "kind": DYNAMIC_SCHEMA.kind,
        "metadata": {"name": name},
        "spec": {"resourceFields": dict(fields)},
    }


def field_hints(node_driver: Object) -> str:
    """Return UI hints: fields with a file's content are multi-line."""
    hints = {field: {"type": "multiline"} for field in known.file_aliases(node_driver)}
    return json.dumps(hints, sort_keys=True, separators=(",", ":")) if hints else ""


# --- serialized flags -----------------------------------------------------------------------------------------------


def flag_to_object(flag: Flag) -> Object:
    default = list(flag.default) if isinstance(flag.default, tuple) else flag.default
    return {"name": flag.name, "type": str(flag.type), "default": default, "env": flag.env, "usage": flag.usage}


def flag_from_object(status: Object) -> Flag:
    type_ = FlagType(status["type"])
    given = status.get("default")
    default: Value = tuple(given) if isinstance(given, list) else given if given is not None else ""
    return Flag(status["name"], status.get("usage", ""), type_, default, status.get("env", ""))


def serialize_flags(flags: Iterable[Flag]) -> str:
    return json.dumps([flag_to_object(flag) for flag in flags], sort_keys=True, separators=(",", ":"))


def parse_flags(text: str) -> tuple[Flag, ...]:
    """Parse what `written` serialized; an invalid annotation counts as missing."""
    try:
        return tuple(flag_from_object(reported) for reported in json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()
