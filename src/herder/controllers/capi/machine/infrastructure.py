"""How far a Machine's infrastructure is: provisioned or not, under which provider ID, where and at which addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, legacy, legacy_mirror, mirror
from herder.api.capi.contract import Contract, infra_machine
from herder.api.capi.contract.fields import Failure
from herder.api.capi.names import is_deleting
from herder.controllers.capi.machine.ownership import rival
from herder.controllers.capi.machine.scene import Scene
from herder.engine.meta.kinds import Object

PROVISIONED = "infrastructureProvisioned"
READY = "InfrastructureReady"


class Infrastructure(NamedTuple):
    condition: Condition
    provisioned: bool
    provider_id: str = ""
    addresses: tuple[Object, ...] = ()
    wanted_domain: str = ""  # belongs in the Machine's spec
    actual_domain: str = ""  # belongs in its status
    legacy: Condition | None = None  # None: as it was
    failure: Failure = Failure("", "")
    waits: str = ""


def infrastructure(scene: Scene) -> Infrastructure:
    obj, contract = scene.infrastructure.obj, scene.infrastructure.contract
    before = scene.initialized(PROVISIONED)
    if obj is None:
        return _absent(scene, before)
    if other := rival(scene, obj):
        problem = f"{_name(scene)} is controlled by {other}"
        return Infrastructure(condition(READY, "Unknown", "InternalError", problem), before, waits=problem)
    reported = infra_machine.provisioned(obj, contract)
    provider_id = infra_machine.provider_id(obj, contract)
    failure, report = infra_machine.failure(obj, contract), _legacy_mirrored(scene, obj, reported)
    if is_deleting(obj) or not (reported or before) or not provider_id:
        waits = "" if before else _still_waits_for(scene, reported)
        return Infrastructure(_mirrored(scene, before), before, legacy=report, failure=failure, waits=waits)
    domain = infra_machine.failure_domain(obj, contract)
    return Infrastructure(
        _mirrored(scene, provisioned=True),
        provisioned=True,
        provider_id=provider_id,
        addresses=_addresses(infra_machine.addresses(obj, contract)),
        wanted_domain=domain if contract is Contract.V1BETA1 else "",
        actual_domain=domain if contract is Contract.V1BETA2 else "",
        legacy=report,
        failure=failure,
    )


def _addresses(reported: Iterable[Object]) -> tuple[Object, ...]:
    """Those that a Machine can have: one that it cannot must not keep its whole status from being written."""
    return tuple(
        {"type": known["type"], "address": known["address"]}
        for known in reported
        if known.get("type") in _ADDRESS_TYPES and known.get("address")
    )


_ADDRESS_TYPES = ("Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS")


def _absent(scene: Scene, before: bool) -> Infrastructure:
    kind = scene.infrastructure_reference.get("kind", "")
    if scene.infrastructure.problem:
        problem = scene.infrastructure.problem
        return Infrastructure(condition(READY, "Unknown", "InternalError", problem), before, waits=problem)
    if not before:
        waits = f"{_name(scene)} does not exist"
        return Infrastructure(
            condition(READY, "False", "ObjectDoesNotExist", f"{kind} does not exist"), before, waits=waits
        )
    if scene.deleting:
        return Infrastructure(condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted"), before)
    where = f"{scene.machine['metadata']['namespace']}/{scene.infrastructure_reference['name']}"
    return Infrastructure(
        condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted while the Machine still exists"),
        before,
        failure=Failure(
            "InvalidConfiguration",
            f"Machine infrastructure resource {kind} {where} has been deleted after provisioning was completed",
        ),
        waits=f"{_name(scene)} has been deleted while the Machine still exists",
    )


def _mirrored(scene: Scene, provisioned: bool) -> Condition:
    kind = scene.infrastructure_reference["kind"]
    if provisioned:
        fallback = condition(READY, "True", "Ready")
    else:
        fallback = condition(READY, "False", "NotReady", f"{kind} status.initialization.provisioned is false")
    return mirror(scene.infrastructure.obj, infra_machine.READY, READY, fallback=fallback, reason_if_true="Ready")


def _legacy_mirrored(scene: Scene, obj: Object, reported: bool) -> Condition:
    if reported:
        fallback = legacy(READY, "True")
    else:
        fallback = legacy(READY, "False", "Deleting" if scene.deleting else "WaitingForInfrastructure", "Info")
    return legacy_mirror(obj, READY, fallback=fallback)


def _still_waits_for(scene: Scene, reported: bool) -> str:
    return f"{_name(scene)} has not told its spec.providerID yet" if reported else f"{_name(scene)} is not provisioned"


def _name(scene: Scene) -> str:
    reference = scene.infrastructure_reference
    return f"{reference.get('kind', '')} {reference.get('name', '')}"
