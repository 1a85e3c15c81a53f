"""How far a Machine's bootstrap data is: whether it exists, and in which Secret."""

from __future__ import annotations

from typing import NamedTuple

from herder.api.capi.conditions import Condition, condition, legacy, legacy_mirror, mirror
from herder.api.capi.contract import bootstrap_config
from herder.api.capi.contract.fields import Failure
from herder.api.capi.names import is_deleting
from herder.controllers.capi.machine.ownership import rival
from herder.controllers.capi.machine.scene import Scene

CREATED = "bootstrapDataSecretCreated"
READY = "BootstrapConfigReady"
LEGACY_READY = "BootstrapReady"


class Bootstrap(NamedTuple):
    condition: Condition
    secret: str = ""  # the name that belongs in the Machine's spec
    created: bool = False
    legacy: Condition | None = None  # None: as it was
    failure: Failure = Failure("", "")
    waits: str = ""


def bootstrap(scene: Scene) -> Bootstrap:
    given = (scene.machine["spec"].get("bootstrap") or {}).get("dataSecretName") or ""
    created = bool(given) or scene.initialized(CREATED)
    if not scene.bootstrap_reference:
        done = legacy(LEGACY_READY, "True") if given else None
        return Bootstrap(condition(READY, "True", "DataSecretProvided"), given, created, done)
    obj, contract = scene.bootstrap.obj, scene.bootstrap.contract
    if obj is None:
        return Bootstrap(_absent(scene, created), given, created, waits=_absence(scene))
    if other := rival(scene, obj):
        problem = f"{_name(scene)} is controlled by {other}"
        return Bootstrap(condition(READY, "Unknown", "InternalError", problem), given, created, waits=problem)
    secret = given
    if not secret and not is_deleting(obj) and bootstrap_config.data_secret_created(obj, contract):
        secret = bootstrap_config.data_secret_name(obj, contract)
        created = created or bool(secret)
    return Bootstrap(
        _mirrored(scene, created),
        secret,
        created,
        legacy(LEGACY_READY, "True") if given else _legacy_mirrored(scene),
        bootstrap_config.failure(obj, contract),
        "" if created else f"{_name(scene)} has not told its data Secret yet",
    )


def _absent(scene: Scene, created: bool) -> Condition:
    kind = scene.bootstrap_reference["kind"]
    if scene.bootstrap.problem:
        return condition(READY, "Unknown", "InternalError", scene.bootstrap.problem)
    if scene.deleting and created:
        return condition(READY, "False", "ObjectDeleted", f"{kind} has been deleted")
    return condition(READY, "False", "ObjectDoesNotExist", f"{kind} does not exist")


def _absence(scene: Scene) -> str:
    return scene.bootstrap.problem or f"{_name(scene)} does not exist"


def _mirrored(scene: Scene, created: bool) -> Condition:
    kind = scene.bootstrap_reference["kind"]
    if created:
        fallback = condition(READY, "True", "Ready")
    else:
        fallback = condition(READY, "False", "NotReady", f"{kind} status.initialization.dataSecretCreated is false")
    return mirror(scene.bootstrap.obj, bootstrap_config.READY, READY, fallback=fallback, reason_if_true="Ready")


def _legacy_mirrored(scene: Scene) -> Condition:
    assert scene.bootstrap.obj is not None
    if bootstrap_config.data_secret_created(scene.bootstrap.obj, scene.bootstrap.contract):
        fallback = legacy(LEGACY_READY, "True")
    else:
        reason = "Deleting" if scene.deleting else "WaitingForDataSecret"
        fallback = legacy(LEGACY_READY, "False", reason, "Info")
    return legacy_mirror(scene.bootstrap.obj, LEGACY_READY, fallback=fallback)


def _name(scene: Scene) -> str:
    return f"{scene.bootstrap_reference['kind']} {scene.bootstrap_reference['name']}"
