"""Store flags in the machine's record, and validate them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from herder.api.machines.drivers.flags import Value
from herder.machine.drivers.amazonec2.options import CREDENTIALS, PREFIX, SETTINGS
from herder.machine.errors import MachineError

Config = dict[str, Any]

CREATION_TOKEN = "CreationToken"
"""Our own field, chosen before anything is created: client token of the launch, and a tag of the instance."""

LAUNCH_ASKED = "LaunchAsked"
"""Our own field: a launch was requested, and its response is not recorded yet."""

_SSH_PORT = 22


def take(config: Config, values: Mapping[str, Value]) -> None:
    wanted = {option.field: _plain(values[option.flag.name]) for option in SETTINGS}
    _check(wanted)
    take_credentials(config, values)
    config.update(wanted)
    config |= {
        "ExistingKey": bool(wanted["KeyName"]),
        "SSHPort": _SSH_PORT,
        "InstanceId": "",
        "PrivateIPAddress": "",
        "SecurityGroupIds": [],
        CREATION_TOKEN: new_token(),
        LAUNCH_ASKED: False,
    }


def new_token() -> str:
    return str(uuid.uuid4())


def take_credentials(config: Config, values: Mapping[str, Value]) -> None:
    """Record only explicit credentials. Those of the environment are read each time, so that rotated keys apply at
    once.
    """
    typed = {option.field: _typed(values, option.flag.name, option.flag.env) for option in CREDENTIALS}
    if bool(typed["AccessKey"]) != bool(typed["SecretKey"]):
        given, missing = ("access", "secret") if typed["AccessKey"] else ("secret", "access")
        raise MachineError(f"--{PREFIX}{given}-key requires --{PREFIX}{missing}-key", "pass both or neither")
    config.update(typed)


def renew_credentials(config: Config, values: Mapping[str, Value]) -> None:
    """Replace the recorded credentials only by new ones."""
    typed = any(_typed(values, option.flag.name, option.flag.env) for option in CREDENTIALS)
    if typed or environment_credentials() is not None:
        take_credentials(config, values)


def environment_credentials() -> tuple[str, str] | None:
    """Return access and secret key. Jobs set variables that the Go SDK knows and boto3 does not."""
    for access, secret in (("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), ("AWS_ACCESS_KEY", "AWS_SECRET_KEY")):
        if os.environ.get(access) and os.environ.get(secret):
            return os.environ[access], os.environ[secret]
    return None


def zone_name(config: Config) -> str:
    """`a` is a zone of the region; zones of other clouds may have any name."""
    zone, region = str(config["Zone"]), str(config["Region"])
    if zone.startswith(region) or (config["Endpoint"] and len(zone) > 1):
        return zone
    return region + zone


def tags(config: Config) -> dict[str, str]:
    words = config["Tags"].split(",") if config.get("Tags") else []
    return dict(zip(words[::2], words[1::2], strict=True))


def open_ports(config: Config) -> Iterator[tuple[str, int]]:
    for text in config.get("OpenPorts") or ():
        port, _, protocol = text.partition("/")
        yield protocol or "tcp", int(port)


def group_names(config: Config) -> list[str]:
    """Old records have one name in a field of its own."""
    return [name for name in (config.get("SecurityGroupName"), *(config.get("SecurityGroupNames") or ())) if name]


def _plain(value: Value) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _typed(values: Mapping[str, Value], flag: str, variable: str) -> str:
    value = str(values.get(flag) or "")
    return "" if value == os.environ.get(variable) else value


def _check(wanted: Config) -> None:
    _check_one_of(wanted, "HttpEndpoint", "http-endpoint", "enabled", "disabled")
    _check_one_of(wanted, "HttpTokens", "http-tokens", "optional", "required")
    _check_one_of(wanted, "HttpProtocolIpv6", "http-protocol-ipv6", "enabled", "disabled")
    _check_ports(wanted)
    if len(wanted["Tags"].split(",")) % 2 and wanted["Tags"]:
        raise MachineError(
            f"--{PREFIX}tags has an odd number of elements",
            "use key1,value1,key2,value2 without commas in keys and values",
        )
    if wanted["KeyName"] and not wanted["SSHPrivateKeyPath"]:
        raise MachineError(f"--{PREFIX}keypair-name requires --{PREFIX}ssh-keypath", "pass the path of the private key")
    if wanted["DisableSSL"] and not wanted["Endpoint"]:
        raise MachineError(
            f"--{PREFIX}insecure-transport requires --{PREFIX}endpoint", "AWS endpoints always use HTTPS"
        )
    if wanted["KmsKeyId"] and not wanted["EncryptEbsVolume"]:
        raise MachineError(f"--{PREFIX}kms-key requires --{PREFIX}encrypt-ebs-volume", "pass both or neither")
    if wanted["Ipv6AddressOnly"] and wanted["Ipv6AddressCount"] < 1:
        raise MachineError(
            f"--{PREFIX}ipv6-address-only requires an IPv6 address", f"set --{PREFIX}ipv6-address-count to 1 or more"
        )


def _check_one_of(wanted: Config, field: str, flag: str, *allowed: str) -> None:
    if wanted[field] and wanted[field] not in allowed:
        raise MachineError(f'--{PREFIX}{flag}: "{wanted[field]}" is not supported', f"use {' or '.join(allowed)}")


def _check_ports(wanted: Config) -> None:
    for text in wanted["OpenPorts"]:
        port, slash, protocol = text.partition("/")
        number = int(port) if port.isdecimal() and port.isascii() else 0
        if not 0 < number < 65536 or (slash and protocol not in ("tcp", "udp")):
            raise MachineError(f'--{PREFIX}open-port: "{text}" is not a port', "use 8080, 8080/tcp or 53/udp")
