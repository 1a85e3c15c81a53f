"""Flags as fields of schemas."""

from __future__ import annotations

import json

import pytest

from herder.api.machines.drivers import schemas
from herder.api.machines.drivers.flags import Flag, FlagType
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.tables import table, table_flags
from herder.engine.meta.kinds import Object

PLAIN: Object = {"metadata": {"name": "x"}, "spec": {}}


def of(name: str) -> Object:
    return next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)


def fields(driver: str) -> dict[str, schemas.Field]:
    return schemas.machine_fields(table_flags(driver) or (), of(driver))


def field(flag: Flag) -> schemas.Field:
    (made,) = schemas.machine_fields([flag], PLAIN).values()
    return made


BOTH = {"create": True, "update": True}


@pytest.mark.parametrize(
    ("flag", "made"),
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
def test_each_type_of_flag_is_a_type_of_field(flag: Flag, made: schemas.Field) -> None:
    assert field(flag) == {**BOTH, "description": "what", **made}


def test_a_flag_without_words_is_described_by_its_name_and_variable() -> None:
    assert field(Flag("x-a", env="X_A"))["description"] == "--x-a (environment variable X_A)"


@pytest.mark.parametrize(
    ("flag", "name"),
    [("amazonec2-region", "region"), ("amazonec2-ssh-keypath", "sshKeypath"), ("google-disk-size", "diskSize")],
)
def test_fields_are_named_after_the_driver_is_taken_off(flag: str, name: str) -> None:
    assert schemas.field_name(flag) == name


@pytest.mark.parametrize("flag", ["url", "x-", "x--y"])
def test_a_flag_that_is_not_named_after_its_driver_is_no_field(flag: str) -> None:
    with pytest.raises(schemas.UnusableFlags, match=f"--{flag}"):
        schemas.field_name(flag)


@pytest.mark.parametrize("name", ["x-metadata", "x-kind", "x-status", "x-common"])
def test_a_flag_that_every_object_has_already_is_no_field(name: str) -> None:
    with pytest.raises(schemas.UnusableFlags, match="is reserved or used"):
        schemas.machine_fields([Flag(name)], PLAIN)


def test_two_flags_cannot_be_one_field() -> None:
    with pytest.raises(schemas.UnusableFlags, match="is reserved or used"):
        schemas.machine_fields([Flag("x-a"), Flag("y-a")], PLAIN)


def test_every_flag_of_the_table_is_a_field_but_those_of_drivers_without_machines() -> None:
    for driver in table().drivers:
        flags = table_flags(driver) or ()
        if driver in ("none", "noop"):
            continue
        assert len(schemas.machine_fields(flags, {**PLAIN, "spec": {"displayName": driver}})) == len(flags)


def test_a_file_is_a_field_for_its_content_under_its_own_name() -> None:
    made = fields("amazonec2")
    assert "sshKeypath" not in made
    assert made["sshKeyContents"]["type"] == "password"
    assert made["userdata"]["type"] == "string"
    assert "content" in made["userdata"]["description"]


def test_what_lets_us_in_is_a_password() -> None:
    hidden = {
        driver: {name for name, made in fields(driver).items() if made["type"] == "password"}
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


def test_a_credential_holds_its_fields_and_says_which_it_must() -> None:
    made = schemas.credential_fields(fields("azure"), of("azure"))
    assert {name: field.get("required", False) for name, field in made.items()} == {
        "clientId": True,
        "clientSecret": True,
        "environment": True,
        "subscriptionId": True,
        "tenantId": False,
    }
    vsphere = schemas.credential_fields(fields("vmwarevsphere"), of("vmwarevsphere"))
    assert vsphere["vcenterPort"]["default"] == {"stringValue": "443"}
    assert "defaultRegion" in schemas.credential_fields(fields("amazonec2"), of("amazonec2"))


def test_fields_that_a_driver_does_not_have_are_not_asked_for() -> None:
    assert schemas.credential_fields({}, of("azure")) == {}


def test_user_interfaces_are_told_which_fields_have_several_lines() -> None:
    hints = json.loads(schemas.field_hints(of("digitalocean")))
    assert hints == {"sshKeyContents": {"type": "multiline"}, "userdata": {"type": "multiline"}}
    assert schemas.field_hints(of("linode")) == ""


def test_flags_are_kept_as_text_and_read_back() -> None:
    flags = table_flags("exoscale") or ()
    assert schemas.parse_flags(schemas.serialize_flags(flags)) == flags


@pytest.mark.parametrize("spoiled", ["", "nonsense", "{}", '[{"name": 1}]', '[{"name":"a","type":"what"}]', "7"])
def test_text_that_somebody_spoiled_is_as_good_as_none(spoiled: str) -> None:
    assert schemas.parse_flags(spoiled) == ()


@pytest.mark.parametrize(
    ("registry", "entry"),
    [
        (schemas.NODE, {"type": "linodeconfig", "create": True, "nullable": True}),
        (schemas.NODE_TEMPLATE, {"type": "linodeconfig", "create": True, "nullable": True, "update": True}),
        (schemas.CREDENTIAL, {"type": "linodecredentialconfig", "create": True, "nullable": True, "update": True}),
    ],
)
def test_a_registry_names_the_schema_of_each_driver(registry: schemas.Registry, entry: schemas.Field) -> None:
    made = registry.with_entry("linode")
    assert made["spec"]["embed"] is True
    assert made["spec"]["resourceFields"] == {registry.key("linode"): entry}


def test_the_registry_of_templates_says_whose_schema_has_kinds() -> None:
    registry = schemas.NODE_TEMPLATE.with_entry("linode")
    assert schemas.active_driver(registry, "linodeconfig") == "linode"
    assert schemas.active_driver(registry, "azureconfig") is None
    assert schemas.active_driver(None, "linodeconfig") is None
