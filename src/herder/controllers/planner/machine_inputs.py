"""What is one machine's own of what its plan is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import STATE_KEY, state_secret
from herder.api.machines.state import driver_config
from herder.api.rke import names
from herder.api.rke.kinds import STATE_SECRET
from herder.controllers.planner.distributions.interface import ConfigError, MachineInputs
from herder.controllers.planner.entries import Entry
from herder.controllers.planner.inputs import Lacking
from herder.engine.memo import DigestMemo
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


def machine_inputs(view: View, entry: Entry, join_url: str) -> MachineInputs:
    """Lacking where the machine's driver has not told its addresses yet."""
    marks, labels = entry.annotations, entry.plan.labels
    internal, external = _addresses(marks, names.INTERNAL_ADDRESS), _addresses(marks, names.ADDRESS)
    driver = None
    if not (internal and external) and _is_driven(entry.machine):
        driver = _driver(view, entry)
        internal, external = internal or driver.internal_addresses, external or driver.external_addresses
    if driver and not (internal or external or entry.infrastructure_ready):
        raise Lacking(f"waiting for machine {_where(entry)} to have an address")
    return MachineInputs(
        name=entry.name,
        uid=entry.uid,
        roles=entry.roles,
        is_init=entry.is_init,
        join_url="" if entry.is_init else join_url,
        windows=entry.plan.is_windows,
        labels=entry.machine["metadata"].get("labels") or {},
        node_name=labels.get(names.NODE_NAME, ""),
        node_labels=_json(marks, names.LABELS, dict[str, str]) or {},
        node_taints=[*_taints(marks, names.TAINTS), *_taints(marks, names.REGISTER_WITH)],
        internal_addresses=internal,
        external_addresses=external,
        ipv6_address=driver.ipv6_address if driver else "",
        driver=driver.name if driver else "",
        join_url_by_hand=names.JOIN_URL_BY_HAND in marks,
    )


def _addresses(marks: Mapping[str, str], mark: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in marks.get(mark, "").split(",") if part.strip())


def _taints(marks: Mapping[str, str], mark: str) -> list[dict[str, str]]:
    """Other programs write null where they have nothing to say."""
    given = _json(marks, mark, list[dict[str, Any]]) or []
    return [{part: str(value) for part, value in taint.items() if value is not None} for taint in given]


def _listed(address: object) -> tuple[str, ...]:
    return (str(address),) if address else ()


def _json(marks: Mapping[str, str], mark: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(marks[mark], type=kind) if marks.get(mark) else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"annotation {mark}: {error}") from None


def _is_driven(machine: Object) -> bool:
    reference = machine["spec"].get("infrastructureRef") or {}
    return reference.get("apiGroup") == MACHINE_GROUP


class _Driver(NamedTuple):
    """What plans need of the driver's record, which also holds credentials and the machine's SSH key."""

    name: str
    internal_addresses: tuple[str, ...]
    external_addresses: tuple[str, ...]
    ipv6_address: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Driver:
        found = config.get("Driver")
        driver = found if isinstance(found, dict) else {}
        internal, external = _listed(driver.get("PrivateIPAddress")), _listed(driver.get("IPAddress"))
        return cls(str(config.get("DriverName") or ""), internal, external, str(driver.get("IPv6Address") or ""))


_drivers: DigestMemo[_Driver | None] = DigestMemo(4096)


def _driver(view: View, entry: Entry) -> _Driver:
    infra = entry.machine["spec"]["infrastructureRef"]["name"]
    secret = view.get(STATE_SECRET, state_secret(infra), entry.machine["metadata"]["namespace"])
    extracted = ((secret or {}).get("data") or {}).get(STATE_KEY)
    driver = _read_driver(str(extracted)) if extracted else None
    if driver is None:
        raise Lacking(f"waiting for machine {_where(entry)} driver config to be saved")
    return driver


def _where(entry: Entry) -> str:
    return f"{entry.machine['metadata']['namespace']}/{entry.name}"


def _read_driver(extracted: str) -> _Driver | None:
    """Unpacked once for each state of a machine's record."""

    def read() -> _Driver | None:
        config = driver_config(extracted)
        return _Driver.of(config) if config is not None else None

    return _drivers.get(hashlib.sha256(extracted.encode()).digest(), read)
