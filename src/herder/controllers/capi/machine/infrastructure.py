"""Infrastructure phase of a Machine: provider ID, addresses, failure domain, InfrastructureReady condition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, legacy, legacy_mirror, mirror
from herder.api.capi.contract import Contract, infra_machine
from herder.api.capi.contract.fields import Failure
from herder.api.capi.names import is_deleting
from herder.controllers.capi.machine.ownership import other_controller
from herder.controllers.capi.machine.scope import MachineScope
from herder.engine.meta.kinds import Object

PROVISIONED = "infrastructureProvisioned"
READY = "InfrastructureReady"


class Infrastructure(NamedTuple):
    """Result of the infrastructure phase."""

    condition: Condition
    provisioned: bool
    provider_id: str = ""
    addresses: tuple[Object, ...] = ()
    wanted_domain: str = ""  # for spec.failureDomain (contract v1beta1)
    actual_domain: str = ""  # for status.failureDomain (contract v1beta2)
    legacy: Condition | None = None  # None keeps the previous one
    failure: Failure = Failure("", "")
    waits: str = ""


def infrastructure(scope: MachineScope) -> Infrastructure:
    obj, contract = scope.infrastructure.obj, scope.infrastructure.contract
    before = scope.initialized(PROVISIONED)
    if obj is None:
        return _absent(scope, before)
    if other := other_controller(scope, obj):
        problem = f"{_name(scope)} is controlled by {other}"
        return Infrastructure(condition(READY, "Unknown", "InternalError", problem), before, waits=problem)
    reported = infra_machine.provisioned(obj, contract)
    provider_id = infra_machine.provider_id(obj, contract)
    failure, report = infra_machine.failure(obj, contract), _legacy_mirrored(scope, obj, reported)
    if is_deleting(obj) or not (reported or before) or not provider_id:
        waits = "" if before else _still_waits_for(scope, reported)
        return Infrastructure(_mirrored(scope, before), before, legacy=report, failure=failure, waits=waits)
    domain = infra_machine.failure_domain(obj, contract)
    return Infrastructure(
        _mirrored(scope, provisioned=True),
        provisioned=True,
        provider_id=provider_id,
        addresses=_addresses(infra_machine.addresses(obj, contract)),
        wanted_domain=domain if contract is Contract.V1BETA1 else "",
        actual_domain=domain if contract is Contract.V1BETA2 else "",
        legacy=report,
        failure=failure,
    )


def _addresses(reported: Iterable[Object]) -> tuple[Object, ...]:
    """Valid addresses only: one invalid entry would make the API server reject the whole status."""
    return tuple(
        {"type": known["type"], "address": known["address"]}
        for known in reported
        if known.get("type") in _ADDRESS_TYPES and known.get("address")
    )


_ADDRESS_TYPES = ("Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS")


def _absent(scope: MachineScope, before: bool) -> Infrastructure:
    kind = scope.infrastructure_reference.get("kind", "")
    if scope.infrastructure.problem:
        problem = scope.infrastructure.problem
        return Infrastructure(condition(READY, "Unknown", "InternalError", problem), before, waits=problem)
    if not before:
        waits = f"{_name(scope)} does not exist"
        return Infrastructure(
            condition(READY, "False", "ObjectDoesNotExist", f"{kind} does not exist"), before, waits=waits
        )
    if scope.deleting:
        return Infrastructure(condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted"), before)
    where = f"{scope.machine['metadata']['namespace']}/{scope.infrastructure_reference['name']}"
    return Infrastructure(
        condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted while the Machine still exists"),
        before,
        failure=Failure(
            "InvalidConfiguration",
            f"Machine infrastructure resource {kind} {where} has been deleted after provisioning was completed",
        ),
        waits=f"{_name(scope)} has been deleted while the Machine still exists",
    )


def _mirrored(scope: MachineScope, provisioned: bool) -> Condition:
    kind = scope.infrastructure_reference["kind"]
    if provisioned:
        fallback = condition(READY, "True", "Ready")
    else:
        fallback = condition(READY, "False", "NotReady", f"{kind} status.initialization.provisioned is false")
    return mirror(scope.infrastructure.obj, infra_machine.READY, READY, fallback=fallback, reason_if_true="Ready")


def _legacy_mirrored(scope: MachineScope, obj: Object, reported: bool) -> Condition:
    if reported:
        fallback = legacy(READY, "True")
    else:
        fallback = legacy(READY, "False", "Deleting" if scope.deleting else "WaitingForInfrastructure", "Info")
    return legacy_mirror(obj, READY, fallback=fallback)


def _still_waits_for(scope: MachineScope, reported: bool) -> str:
    return f"{_name(scope)} has not reported spec.providerID yet" if reported else f"{_name(scope)} is not provisioned"


def _name(scope: MachineScope) -> str:
    reference = scope.infrastructure_reference
    return f"{reference.get('kind', '')} {reference.get('name', '')}"
