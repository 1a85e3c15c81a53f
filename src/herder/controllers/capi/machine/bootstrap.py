"""Bootstrap phase of a Machine: data Secret, and the BootstrapConfigReady condition."""

from __future__ import annotations

from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, legacy, legacy_mirror, mirror
from herder.api.capi.contract import bootstrap_config
from herder.api.capi.contract.fields import Failure
from herder.api.capi.names import is_deleting
from herder.controllers.capi.machine.ownership import other_controller
from herder.controllers.capi.machine.scope import MachineScope

CREATED = "bootstrapDataSecretCreated"
READY = "BootstrapConfigReady"
LEGACY_READY = "BootstrapReady"


class Bootstrap(NamedTuple):
    """Result of the bootstrap phase."""

    condition: Condition
    secret: str = ""  # for spec.bootstrap.dataSecretName
    created: bool = False
    legacy: Condition | None = None  # None keeps the previous one
    failure: Failure = Failure("", "")
    waits: str = ""


def bootstrap(scope: MachineScope) -> Bootstrap:
    given = (scope.machine["spec"].get("bootstrap") or {}).get("dataSecretName") or ""
    created = bool(given) or scope.initialized(CREATED)
    if not scope.bootstrap_reference:
        done = legacy(LEGACY_READY, "True") if given else None
        return Bootstrap(condition(READY, "True", "DataSecretProvided"), given, created, done)
    obj, contract = scope.bootstrap.obj, scope.bootstrap.contract
    if obj is None:
        return Bootstrap(_absent(scope, created), given, created, waits=_missing_node(scope))
    if other := other_controller(scope, obj):
        problem = f"{_name(scope)} is controlled by {other}"
        return Bootstrap(condition(READY, "Unknown", "InternalError", problem), given, created, waits=problem)
    secret = given
    if not secret and not is_deleting(obj) and bootstrap_config.data_secret_created(obj, contract):
        secret = bootstrap_config.data_secret_name(obj, contract)
        created = created or bool(secret)
    return Bootstrap(
        _mirrored(scope, created),
        secret,
        created,
        legacy(LEGACY_READY, "True") if given else _legacy_mirrored(scope),
        bootstrap_config.failure(obj, contract),
        "" if created else f"{_name(scope)} has not reported status.dataSecretName yet",
    )


def _absent(scope: MachineScope, created: bool) -> Condition:
    kind = scope.bootstrap_reference["kind"]
    if scope.bootstrap.problem:
        return condition(READY, "Unknown", "InternalError", scope.bootstrap.problem)
    if scope.deleting and created:
        return condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted")
    return condition(READY, "False", "ObjectDoesNotExist", f"{kind} does not exist")


def _missing_node(scope: MachineScope) -> str:
    return scope.bootstrap.problem or f"{_name(scope)} does not exist"


def _mirrored(scope: MachineScope, created: bool) -> Condition:
    kind = scope.bootstrap_reference["kind"]
    if created:
        fallback = condition(READY, "True", "Ready")
    else:
        fallback = condition(READY, "False", "NotReady", f"{kind} status.initialization.dataSecretCreated is false")
    return mirror(scope.bootstrap.obj, bootstrap_config.READY, READY, fallback=fallback, reason_if_true="Ready")


def _legacy_mirrored(scope: MachineScope) -> Condition:
    assert scope.bootstrap.obj is not None
    if bootstrap_config.data_secret_created(scope.bootstrap.obj, scope.bootstrap.contract):
        fallback = legacy(LEGACY_READY, "True")
    else:
        reason = "Deleting" if scope.deleting else "WaitingForDataSecret"
        fallback = legacy(LEGACY_READY, "False", reason, "Info")
    return legacy_mirror(scope.bootstrap.obj, LEGACY_READY, fallback=fallback)


def _name(scope: MachineScope) -> str:
    return f"{scope.bootstrap_reference['kind']} {scope.bootstrap_reference['name']}"
