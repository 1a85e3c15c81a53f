"""Schemas of machine configs and credentials, generated from the flags of drivers."""

from __future__ import annotations

import json

import pytest

from herder.api.machines.drivers import schemas
from herder.api.machines.drivers.flags import Flag, FlagType
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.tables import table, table_flags
from herder.engine.meta.kinds import Object

PLAIN: Object = {"metadata": {"name": "x"}, "spec": {}}


def node_driver(name: str) -> Object:
    return next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)


def fields(driver: str) -> dict[str, schemas.Field]:
    return schemas.machine_fields(table_flags(driver) or (), node_driver(driver))


def field(flag: Flag) -> schemas.Field:
    (result,) = schemas.machine_fields([flag], PLAIN).values()
    return result


BOTH = {"create": True, "update": True}


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        (Flag("x-a", "what", default="b"), {"type": "string", "default": {"stringValue": "b"}}),
        (Flag("x-a", "what"), {"type": "string", "default": {"stringValue": ""}}),
        (Flag("x-a", "what", FlagType.INT, 16), {"type": "string", "default": {"stringValue": "16"}}),
        (Flag("x-a", "what", FlagType.BOOL, False), {"type": "boolean", "default": {"boolValue": False}}),
        (Flag("x-a", "what", FlagType.LIST, ()), {"type": "array[string]", "nullable": True}),
        (
            Flag("x-a", "what", FlagType.LIST, ("b",)),
            {"type": "array[string]", "nullable": True, "default": {"stringSliceValue": ["b"]}},
        ),
    ],
)
def test_each_flag_type_maps_to_a_field_type(flag: Flag, expected: schemas.Field) -> None:
    assert field(flag) == {**BOTH, "description": "what", **expected}


def test_a_flag_without_usage_is_described_by_its_name_and_variable() -> None:
    assert field(Flag("x-a", env="X_A"))["description"] == "--x-a (environment variable X_A)"


@pytest.mark.parametrize(
    ("flag", "name"),
    [("amazonec2-region", "region"), ("amazonec2-ssh-keypath", "sshKeypath"), ("google-disk-size", "diskSize")],
)
def test_field_names_omit_the_driver_prefix(flag: str, name: str) -> None:
    assert schemas.field_name(flag) == name


@pytest.mark.parametrize("flag", ["url", "x-", "x--y"])
def test_a_flag_without_the_driver_prefix_is_rejected(flag: str) -> None:
    with pytest.raises(schemas.UnusableFlags, match=f"--{flag}"):
        schemas.field_name(flag)


@pytest.mark.parametrize("name", ["x-metadata", "x-kind", "x-status", "x-common"])
def test_a_flag_with_a_reserved_field_name_is_rejected(name: str) -> None:
    with pytest.raises(schemas.UnusableFlags, match="is reserved or used"):
        schemas.machine_fields([Flag(name)], PLAIN)


def test_two_flags_with_one_field_name_are_rejected() -> None:
    with pytest.raises(schemas.UnusableFlags, match="is reserved or used"):
        schemas.machine_fields([Flag("x-a"), Flag("y-a")], PLAIN)


def test_every_flag_of_the_table_is_a_field() -> None:
    for driver in table().drivers:
        flags = table_flags(driver) or ()
        if driver in ("none", "noop"):
            continue
        assert len(schemas.machine_fields(flags, {**PLAIN, "spec": {"displayName": driver}})) == len(flags)


def test_a_file_flag_is_a_field_for_its_content() -> None:
    result = fields("amazonec2")
    assert "sshKeypath" not in result
    assert result["sshKeyContents"]["type"] == "password"
    assert result["userdata"]["type"] == "string"
    assert "content" in result["userdata"]["description"]


def test_secret_fields_have_type_password() -> None:
    hidden = {
        driver: {name for name, field in fields(driver).items() if field["type"] == "password"}
        for driver in ("amazonec2", "azure", "digitalocean", "google", "exoscale", "generic")
    }
    assert hidden == {
        "amazonec2": {"secretKey", "sshKeyContents"},
        "azure": {"clientSecret"},
        "digitalocean": {"accessToken", "sshKeyContents"},
        "google": {"authEncodedJson"},
        "exoscale": {"apiSecretKey", "sshKey"},
        "generic": {"sshKey"},
    }


def test_credential_fields_and_which_are_required() -> None:
    result = schemas.credential_fields(fields("azure"), node_driver("azure"))
    assert {name: field.get("required", False) for name, field in result.items()} == {
        "clientId": True,
        "clientSecret": True,
        "environment": True,
        "subscriptionId": True,
        "tenantId": False,
    }
    vsphere = schemas.credential_fields(fields("vmwarevsphere"), node_driver("vmwarevsphere"))
    assert vsphere["vcenterPort"]["default"] == {"stringValue": "443"}
    assert "defaultRegion" in schemas.credential_fields(fields("amazonec2"), node_driver("amazonec2"))


def test_credential_fields_without_a_flag_are_omitted() -> None:
    assert schemas.credential_fields({}, node_driver("azure")) == {}


def test_field_hints_mark_multiline_fields() -> None:
    hints = json.loads(schemas.field_hints(node_driver("digitalocean")))
    assert hints == {"sshKeyContents": {"type": "multiline"}, "userdata": {"type": "multiline"}}
    assert schemas.field_hints(node_driver("linode")) == ""


def test_flags_are_serialized_and_parsed() -> None:
    flags = table_flags("exoscale") or ()
    assert schemas.parse_flags(schemas.serialize_flags(flags)) == flags


@pytest.mark.parametrize("malformed", ["", "nonsense", "{}", '[{"name": 1}]', '[{"name":"a","type":"what"}]', "7"])
def test_malformed_flags_are_ignored(malformed: str) -> None:
    assert schemas.parse_flags(malformed) == ()


@pytest.mark.parametrize(
    ("registry", "entry"),
    [
        (schemas.NODE, {"type": "linodeconfig", "create": True, "nullable": True}),
        (schemas.NODE_TEMPLATE, {"type": "linodeconfig", "create": True, "nullable": True, "update": True}),
        (schemas.CREDENTIAL, {"type": "linodecredentialconfig", "create": True, "nullable": True, "update": True}),
    ],
)
def test_a_registry_names_the_schema_of_each_driver(registry: schemas.Registry, entry: schemas.Field) -> None:
    schema = registry.with_entry("linode")
    assert schema["spec"]["embed"] is True
    assert schema["spec"]["resourceFields"] == {registry.key("linode"): entry}


def test_the_template_registry_maps_schemas_to_active_drivers() -> None:
    registry = schemas.NODE_TEMPLATE.with_entry("linode")
    assert schemas.active_driver(registry, "linodeconfig") == "linode"
    assert schemas.active_driver(registry, "azureconfig") is None
    assert schemas.active_driver(None, "linodeconfig") is None
