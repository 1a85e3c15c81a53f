"""Per-machine inputs of plans: roles, addresses, labels, taints and the server to join."""

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
from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import MachineInputs
from herder.controllers.planner.plan.inputs import InputsNotReady
from herder.controllers.planner.rollout.machines import PlanEntry
from herder.engine.memo import DigestMemo
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


def machine_inputs(view: View, entry: PlanEntry, join_url: str, *, reports_agent: bool = False) -> MachineInputs:
    """Collect the inputs of one machine. Raises InputsNotReady until the node driver has saved its addresses."""
    annotations, labels = entry.annotations, entry.plan.labels
    internal, external = _addresses(annotations, names.INTERNAL_ADDRESS), _addresses(annotations, names.ADDRESS)
    driver = None
    if not (internal and external) and _has_node_driver(entry.machine):
        driver = _driver(view, entry)
        internal, external = internal or driver.internal_addresses, external or driver.external_addresses
    if driver and not (internal or external or entry.infrastructure_ready):
        raise InputsNotReady(f"waiting for machine {_machine_key(entry)} to have an address")
    return MachineInputs(
        name=entry.name,
        uid=entry.uid,
        roles=entry.roles,
        is_init=entry.is_init,
        join_url="" if entry.is_init else join_url,
        windows=entry.plan.is_windows,
        labels=entry.machine["metadata"].get("labels") or {},
        node_name=labels.get(names.NODE_NAME, ""),
        node_labels=_json(annotations, names.LABELS, dict[str, str]) or {},
        node_taints=[*_taints(annotations, names.TAINTS), *_taints(annotations, names.REGISTER_WITH)],
        internal_addresses=internal,
        external_addresses=external,
        ipv6_address=driver.ipv6_address if driver else "",
        driver=driver.name if driver else "",
        join_url_autoset_disabled=names.JOIN_URL_BY_HAND in annotations,
        reports_agent=reports_agent,
    )


def _addresses(annotations: Mapping[str, str], annotation: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in annotations.get(annotation, "").split(",") if part.strip())


def _taints(annotations: Mapping[str, str], annotation: str) -> list[dict[str, str]]:
    """Taints of an annotation. Other programs write null for empty fields."""
    given = _json(annotations, annotation, list[dict[str, Any]]) or []
    return [{part: str(value) for part, value in taint.items() if value is not None} for taint in given]


def _as_tuple(address: object) -> tuple[str, ...]:
    return (str(address),) if address else ()


def _json(annotations: Mapping[str, str], annotation: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(annotations[annotation], type=kind) if annotations.get(annotation) else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"annotation {annotation}: {error}") from None


def _has_node_driver(machine: Object) -> bool:
    reference = machine["spec"].get("infrastructureRef") or {}
    return reference.get("apiGroup") == MACHINE_GROUP


class _Driver(NamedTuple):
    """The parts of the driver's state that plans need. The state also holds credentials and the SSH key."""

    name: str
    internal_addresses: tuple[str, ...]
    external_addresses: tuple[str, ...]
    ipv6_address: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _Driver:
        found = config.get("Driver")
        driver = found if isinstance(found, dict) else {}
        internal, external = _as_tuple(driver.get("PrivateIPAddress")), _as_tuple(driver.get("IPAddress"))
        return cls(str(config.get("DriverName") or ""), internal, external, str(driver.get("IPv6Address") or ""))


_drivers: DigestMemo[_Driver | None] = DigestMemo(4096)


def _driver(view: View, entry: PlanEntry) -> _Driver:
    infra = entry.machine["spec"]["infrastructureRef"]["name"]
    secret = view.get(STATE_SECRET, state_secret(infra), entry.machine["metadata"]["namespace"])
    extracted = ((secret or {}).get("data") or {}).get(STATE_KEY)
    driver = _read_driver(str(extracted)) if extracted else None
    if driver is None:
        raise InputsNotReady(f"waiting for machine {_machine_key(entry)} driver config to be saved")
    return driver


def _machine_key(entry: PlanEntry) -> str:
    return f"{entry.machine['metadata']['namespace']}/{entry.name}"


def _read_driver(extracted: str) -> _Driver | None:
    """Decompress each state of a machine only once."""

    def read() -> _Driver | None:
        config = driver_config(extracted)
        return _Driver.of(config) if config is not None else None

    return _drivers.get(hashlib.sha256(extracted.encode()).digest(), read)
