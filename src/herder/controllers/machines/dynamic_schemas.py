"""DynamicSchemas of active drivers become three CRDs per driver; inactive drivers lose them.

A CRD is deleted only if no objects of it exist: deleting it would delete them, and their machines with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.crds import UnusableField, driver_definitions
from herder.api.machines.drivers import schemas
from herder.api.machines.drivers.admission import still_used_message
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.writes import delete
from herder.controllers.machines.remaining_objects import (
    driver_of_definition,
    driver_of_object,
    find_remaining,
    is_deletion,
)
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Parallel, Ref, waiting
from herder.engine.runtime.handlers import DynamicWatches, Watches, changed
from herder.engine.runtime.view import View

BY_DRIVER = "driver"


def reconcile(view: View) -> Decision:
    if view.name in schemas.REGISTRY_NAMES or not view.name.endswith("config"):
        return DONE
    schema = view.get(DYNAMIC_SCHEMA, view.name)
    registry = view.get(DYNAMIC_SCHEMA, schemas.NODE_TEMPLATE.name)
    driver = schemas.active_driver(registry, view.name)
    if schema is None or driver is None:
        return _without_kinds(view, view.name.removesuffix("config"), (schema, registry))
    return _with_kinds(driver, schema)


def _with_kinds(driver: str, schema: Object) -> Decision:
    try:
        definitions = driver_definitions(driver, schemas.fields_of(schema))
    except UnusableField as problem:
        ref = Ref(DYNAMIC_SCHEMA, schema["metadata"]["name"])
        return waiting(f"spec.resourceFields: {problem}; correct it to create the CRDs of the driver", ref)
    reason = f"driver {driver} is active"
    return Decision(writes=(Parallel(tuple(Apply(DEFINITION, each, reason) for each in definitions)),))


def _without_kinds(view: View, driver: str, since: Sequence[Object | None]) -> Decision:
    definitions = view.select(DEFINITION, index=(BY_DRIVER, driver))
    if not definitions:
        return DONE
    remaining = find_remaining(view, driver, since)
    if remaining.names:
        problem = still_used_message(driver, remaining.names)
        reason = f"the kinds of driver {driver}, which is inactive, cannot be deleted: {problem}"
        return remaining.needs + waiting(reason)
    if not remaining.known:
        return remaining.needs
    reason = f"driver {driver} is inactive and no objects of its kinds exist"
    return Decision(writes=(Parallel(tuple(delete(DEFINITION, each, reason) for each in definitions)),))


# --- watches --------------------------------------------------------------------------------------------------------


def _schemas_in_registry(schema: Object) -> Iterable[Key]:
    if schema["metadata"]["name"] == schemas.NODE_TEMPLATE.name:
        for key in schemas.fields_of(schema):
            yield Key("", key.lower())


def _schema_of_definition(definition: Object) -> Iterable[Key]:
    for driver in driver_of_definition(definition):
        yield Key("", schemas.config_schema_name(driver))


def _schema_of_object(obj: Object) -> Iterable[Key]:
    driver = driver_of_object(obj)
    if driver is not None:
        yield Key("", schemas.config_schema_name(driver))


CONTROLLER = Controller(
    name="dynamic-schema",
    kind=DYNAMIC_SCHEMA,
    reconcile=reconcile,
    watches=(
        Watches(DYNAMIC_SCHEMA, _schemas_in_registry, changed("spec.resourceFields")),
        Watches(
            DEFINITION,
            _schema_of_definition,
            changed("metadata.labels", "metadata.generation", "metadata.deletionTimestamp"),
        ),
    ),
    predicate=changed("spec"),
    indexes={DEFINITION: {BY_DRIVER: driver_of_definition}},
    dynamic_watches=DynamicWatches(_schema_of_object, is_deletion),
    pace=0.1,
    workers=2,
)
