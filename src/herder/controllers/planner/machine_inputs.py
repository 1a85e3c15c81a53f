"""What is one machine's own of what its plan is made of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from herder.api.machines.kinds import MACHINE_GROUP
from herder.api.machines.names import STATE_KEY, state_secret
from herder.api.machines.state import driver_config
from herder.api.rke import names
from herder.api.rke.kinds import STATE_SECRET
from herder.controllers.planner.distributions.interface import ConfigError, MachineInputs
from herder.controllers.planner.entries import Entry
from herder.controllers.planner.inputs import Lacking
from herder.engine.meta.kinds import Object
from herder.engine.runtime.view import View


def machine_inputs(view: View, entry: Entry, join_url: str) -> MachineInputs:
    """Lacking where the machine's driver has not told its addresses yet."""
    marks, labels = entry.annotations, entry.plan.labels
    internal, external = _addresses(marks, names.INTERNAL_ADDRESS), _addresses(marks, names.ADDRESS)
    driver: Mapping[str, Any] = {}
    if not (internal and external) and _is_driven(entry.machine):
        driver = _driver(view, entry)
    told = driver.get("Driver") or {}
    internal, external = internal or _listed(told.get("PrivateIPAddress")), external or _listed(told.get("IPAddress"))
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
        ipv6_address=str(told.get("IPv6Address") or ""),
        driver=str(driver.get("DriverName") or ""),
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
    except msgspec.DecodeError as error:
        raise ConfigError(f"annotation {mark}: {error}") from None


def _is_driven(machine: Object) -> bool:
    reference = machine["spec"].get("infrastructureRef") or {}
    return reference.get("apiGroup") == MACHINE_GROUP


def _driver(view: View, entry: Entry) -> Mapping[str, Any]:
    infra = entry.machine["spec"]["infrastructureRef"]["name"]
    secret = view.get(STATE_SECRET, state_secret(infra), entry.machine["metadata"]["namespace"])
    extracted = ((secret or {}).get("data") or {}).get(STATE_KEY)
    config = _config(extracted) if extracted else None
    if config is None:
        raise Lacking(f"waiting for machine {_where(entry)} driver config to be saved")
    return config


def _where(entry: Entry) -> str:
    return f"{entry.machine['metadata']['namespace']}/{entry.name}"


@lru_cache(maxsize=4096)
def _config(extracted: str) -> Mapping[str, Any] | None:
    """Unpacked once for each state of a machine's record."""
    return driver_config(extracted)
