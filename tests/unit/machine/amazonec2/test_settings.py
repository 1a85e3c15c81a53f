"""Flags of the EC2 driver: validation, and what is stored in the record."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.machines.drivers.flags import FlagType, Value
from herder.machine.driver import Machine
from herder.machine.drivers import create_flags
from herder.machine.drivers.amazonec2 import AmazonEC2, settings
from herder.machine.errors import MachineError


@pytest.fixture(autouse=True)
def _no_credentials_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for pair in (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_ACCESS_KEY", "AWS_SECRET_KEY")):
        for name in (*pair, "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)


def driver(config: dict[str, Any] | None = None) -> AmazonEC2:
    return AmazonEC2(Machine("m1", config if config is not None else {}, {}, save=lambda: None, say=print))


def values(**overrides: Value) -> dict[str, Value]:
    """Return the values of all flags: these overrides, and defaults for the rest."""
    defaults = {flag.name: flag.default if flag.default != "" else flag.empty for flag in AmazonEC2.flags}
    return defaults | {f"amazonec2-{name.replace('_', '-')}": value for name, value in overrides.items()}


def configured(**overrides: Value) -> dict[str, Any]:
    created = driver()
    created.configure(values(**overrides))
    return created.machine.config


def test_every_flag_exists_with_its_type() -> None:
    flags = create_flags("amazonec2")
    assert flags is not None
    assert len(flags) == 39
    by_type = {kind: sum(flag.type is kind for flag in flags) for kind in FlagType}
    assert by_type == {FlagType.STRING: 23, FlagType.INT: 4, FlagType.BOOL: 10, FlagType.LIST: 2}


def test_values_are_stored_in_the_fields_of_the_go_driver() -> None:
    config = configured(region="eu-west-1", zone="b", root_size=20, open_port=("8080", "53/udp"), monitoring=True)
    assert {
        "Region": "eu-west-1",
        "Zone": "b",
        "RootSize": 20,
        "OpenPorts": ["8080", "53/udp"],
        "Monitoring": True,
        "SecurityGroupNames": ["rancher-nodes"],
        "SSHUser": "ubuntu",
        "SSHPort": 22,
        "ExistingKey": False,
    }.items() <= config.items()


def test_every_creation_has_its_own_token() -> None:
    assert configured()["CreationToken"] != configured()["CreationToken"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"http_endpoint": "on"}, '--amazonec2-http-endpoint: "on" is not supported; use enabled or disabled'),
        ({"http_tokens": "yes"}, '--amazonec2-http-tokens: "yes" is not supported; use optional or required'),
        ({"http_protocol_ipv6": "6"}, '--amazonec2-http-protocol-ipv6: "6" is not supported; use enabled or disabled'),
        ({"open_port": ("http",)}, '--amazonec2-open-port: "http" is not a port; use 8080, 8080/tcp or 53/udp'),
        ({"open_port": ("70000",)}, '--amazonec2-open-port: "70000" is not a port'),
        ({"open_port": ("80/icmp",)}, '--amazonec2-open-port: "80/icmp" is not a port'),
        ({"tags": "owner"}, "--amazonec2-tags has an odd number of elements"),
        ({"keypair_name": "mine"}, "--amazonec2-keypair-name requires --amazonec2-ssh-keypath"),
        ({"insecure_transport": True}, "--amazonec2-insecure-transport requires --amazonec2-endpoint"),
        ({"kms_key": "alias/x"}, "--amazonec2-kms-key requires --amazonec2-encrypt-ebs-volume"),
        ({"ipv6_address_only": True}, "set --amazonec2-ipv6-address-count to 1 or more"),
        ({"access_key": "AK"}, "--amazonec2-access-key requires --amazonec2-secret-key"),
        ({"secret_key": "hidden"}, "--amazonec2-secret-key requires --amazonec2-access-key"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_values_are_rejected_with_the_flag_name(overrides: dict[str, Value], message: str) -> None:
    with pytest.raises(MachineError) as refused:
        configured(**overrides)
    assert message in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("region", "zone", "endpoint", "name"),
    [
        ("us-east-1", "a", "", "us-east-1a"),
        ("us-east-1", "us-east-1b", "", "us-east-1b"),
        ("us-west-2", "-lax-1a", "", "us-west-2-lax-1a"),
        ("us-east-1", "us-east-1a", "http://127.0.0.1", "us-east-1a"),
        ("us-east-1", "nova", "http://127.0.0.1", "nova"),
        ("us-east-1", "a", "http://127.0.0.1", "us-east-1a"),
    ],
)
def test_a_zone_is_a_letter_or_a_full_name(region: str, zone: str, endpoint: str, name: str) -> None:
    assert settings.zone_name({"Region": region, "Zone": zone, "Endpoint": endpoint}) == name


def test_credentials_from_flags_are_stored() -> None:
    config = configured(access_key="AK", secret_key="SK", session_token="ST")
    assert (config["AccessKey"], config["SecretKey"], config["SessionToken"]) == ("AK", "SK", "ST")


def test_credentials_from_the_environment_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SK")
    config = configured(access_key="AK", secret_key="SK")
    assert (config["AccessKey"], config["SecretKey"], config["SessionToken"]) == ("", "", "")
    assert settings.environment_credentials() == ("AK", "SK")


def test_credential_variables_of_jobs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.environment_credentials() is None
    monkeypatch.setenv("AWS_ACCESS_KEY", "AK")
    monkeypatch.setenv("AWS_SECRET_KEY", "SK")
    assert settings.environment_credentials() == ("AK", "SK")


def test_an_update_changes_only_credentials() -> None:
    config = configured(access_key="old", secret_key="old", region="eu-west-1")
    updated = driver(config)
    updated.update_credentials(
        {"amazonec2-access-key": "new", "amazonec2-secret-key": "new", "amazonec2-region": "us-west-2"}
    )
    assert (config["AccessKey"], config["SecretKey"], config["Region"]) == ("new", "new", "eu-west-1")


def test_an_update_without_credentials_keeps_the_stored_ones() -> None:
    config = configured(access_key="old", secret_key="old")
    driver(config).update_credentials({"amazonec2-region": "us-west-2"})
    assert (config["AccessKey"], config["SecretKey"]) == ("old", "old")


def test_a_rotated_credential_from_the_environment_replaces_a_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(access_key="old", secret_key="old")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "new")
    driver(config).update_credentials({"amazonec2-access-key": "new", "amazonec2-secret-key": "new"})
    assert (config["AccessKey"], config["SecretKey"]) == ("", "")
