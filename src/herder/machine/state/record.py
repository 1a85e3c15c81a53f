"""A machine record: config.json in rancher-machine's format, and its files.

Unknown fields are kept. Our own fields are under `Herder`, which rancher-machine drops: a record without it was written
by that program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from herder.machine.errors import MachineError

CONFIG = "config.json"
VERSION = 3
OWN = "Herder"
_DRIVER = re.compile("[a-z][a-z0-9]*")


class Phase(StrEnum):
    CREATING = "creating"
    CREATED = "created"
    REMOVING = "removing"


@dataclass
class Record:
    name: str
    driver: str
    config: dict[str, Any]  # the `Driver` object
    options: dict[str, Any]  # `HostOptions`
    files: MutableMapping[str, bytes]  # of the machine's directory, except config.json
    phase: Phase = Phase.CREATED
    attempt: int = 0  # incremented by each process that takes over the machine: an older process cannot save
    others: dict[str, Any] = field(default_factory=dict)  # unknown top-level fields


def new_record(name: str, driver: str, store_path: str, *, script_path: str, hostname: str) -> Record:
    config: dict[str, Any] = {
        "IPAddress": "",
        "IPv6Address": "",
        "MachineName": name,
        "SSHUser": "",
        "SSHPort": 0,
        "SSHKeyPath": "",
        "StorePath": store_path,
        "SwarmMaster": False,
        "SwarmHost": "",
        "SwarmDiscovery": "",
    }
    options: dict[str, Any] = {
        "Driver": "",
        "Memory": 0,
        "Disk": 0,
        "CustomInstallScript": script_path,
        "HostnameOverride": hostname,
        "MachineOS": "",
        "EngineOptions": None,
        "SwarmOptions": None,
        "AuthOptions": None,
    }
    return Record(name, driver, config, options, {}, Phase.CREATING)


def read(name: str, files: Mapping[str, bytes]) -> Record:
    """Read a record from the files of a machine's directory."""
    try:
        content = json.loads(files[CONFIG])
        config, driver, own = content["Driver"], content["DriverName"], content.get(OWN) or {}
        if not isinstance(config, dict) or not isinstance(driver, str):
            raise TypeError
        phase, attempt = Phase(own.get("Phase", Phase.CREATED)), int(own.get("Attempt", 0))
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise MachineError(
            f'cannot read the state of machine "{name}": config.json is missing or damaged',
            "delete its instance at the provider manually, then run rm --force",
        ) from error
    if content.get("ConfigVersion") != VERSION:
        raise MachineError(
            f'the state of machine "{name}" has ConfigVersion {content.get("ConfigVersion")}, not {VERSION}',
            "upgrade it with: rancher-machine inspect NAME",
        )
    known = {"ConfigVersion", "Driver", "DriverName", "HostOptions", "Name", OWN}
    return Record(
        name=name,
        driver=driver,
        config=config,
        options=content.get("HostOptions") or {},
        files={path: data for path, data in files.items() if path != CONFIG},
        phase=phase,
        attempt=attempt,
        others={key: value for key, value in content.items() if key not in known},
    )


def check_driver(found: Record, driver: str) -> None:
    """An editor of the state Secret must not choose the driver, and so the program, that a Job runs.

    Jobs of earlier versions do not specify their driver: then it must be a name, not a path.
    """
    if found.driver != driver if driver else not _DRIVER.fullmatch(found.driver):
        raise MachineError(
            f'the record of machine "{found.name}" is of driver "{found.driver[:80]}", which is not that of this Job',
            "restore the state Secret from a backup, or remove the server at its provider and then the Secret",
        )


def as_json(record: Record) -> dict[str, Any]:
    return {
        "ConfigVersion": VERSION,
        "Driver": record.config,
        "DriverName": record.driver,
        "HostOptions": record.options,
        "Name": record.name,
        **record.others,
        OWN: {"Phase": str(record.phase), "Attempt": record.attempt},
    }


def write(record: Record) -> dict[str, bytes]:
    """Return the files of the machine's directory."""
    return {**record.files, CONFIG: json.dumps(as_json(record), indent=4, ensure_ascii=False).encode()}
