"""NodeDrivers become DynamicSchemas: machine config, credential, and entries in the driver registries.

The fields come from the driver's create flags. Native drivers return them, those of rancher-machine are in a table, and
a downloaded driver is queried once; the answer is stored in an annotation of its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from herder import __version__
from herder.api.capi.kinds import DEFINITION
from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.admission import is_active
from herder.api.machines.drivers.flags import Flag
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER
from herder.api.machines.tables import table, table_flags
from herder.api.writes import delete, difference, owner_reference, ref
from herder.controllers.machines.driver_conditions import State, driver_status
from herder.controllers.machines.remaining_objects import (
    RemainingObjects,
    driver_of_object,
    find_remaining,
    is_deletion,
)
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Effect, Patch, Ref, Wait, Write, Writes
from herder.engine.runtime.handlers import DynamicWatches, Indexed, Watches, changed
from herder.engine.runtime.view import View

NAME = "node-driver"
FINALIZER = "controller.cattle.io/node-driver-controller"
BY_DRIVER = "driver"
ANY = "any"

CreateFlags = Callable[[str], tuple[Flag, ...] | None]


def reconcile(view: View, create_flags: CreateFlags) -> Decision:
    node_driver = view.get(NODE_DRIVER, view.name)
    if node_driver is None:
        return DONE
    if node_driver["metadata"].get("deletionTimestamp"):
        return _remove(view, node_driver)
    if FINALIZER not in (node_driver["metadata"].get("finalizers") or ()):
        return Decision(writes=(_finalizers(node_driver, add=True),))
    problem = _problem(view, node_driver)
    if problem:
        return _report_status(view, node_driver, State(problem=problem))
    driver = known.driver_name(node_driver)
    remaining = RemainingObjects() if is_active(node_driver) else find_remaining(view, driver, (node_driver,))
    if not remaining.known:
        return remaining.needs
    if not (is_active(node_driver) or remaining.names or _spec(node_driver).get("addCloudCredential")):
        return Decision(writes=_registrations(view, driver, ())) + _report_status(view, node_driver, State())
    return remaining.needs + _publish(
        view, node_driver, _driver_flags(view, node_driver, create_flags), remaining.names
    )


def _problem(view: View, node_driver: Object) -> str:
    """Why this NodeDriver cannot provide a driver at all."""
    driver = known.driver_name(node_driver)
    first = min(view.select(NODE_DRIVER, index=(BY_DRIVER, driver)), key=known.age)["metadata"]["name"]
    if first != view.name:
        return f"NodeDriver {first} provides driver {driver} already; delete one of the two"
    is_named = known.is_built_in(node_driver) or _spec(node_driver).get("displayName")
    # Otherwise the file name of the program determines the driver's name.
    return known.name_problem(driver) if is_named else ""


# --- create flags ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriverFlags:
    """The driver's create flags; None if unknown, with `problem` if they cannot be read."""

    flags: tuple[Flag, ...] | None = None
    problem: str = ""
    name: str = ""  # name that a downloaded driver reports
    version: str = ""  # machine CLI that contains the driver, with its version
    effects: tuple[Effect, ...] = ()


def _driver_flags(view: View, node_driver: Object, create_flags: CreateFlags) -> DriverFlags:
    driver, program = known.driver_name(node_driver), known.program_of(node_driver)
    if program == known.OWN_PROGRAM:
        flags = create_flags(driver) if known.is_built_in(node_driver) else None
        if flags is None:
            return DriverFlags(problem=_not_ours(driver))
        return DriverFlags(flags, version=f"{program} {__version__}")
    if known.is_built_in(node_driver):
        flags = table_flags(driver)
        return DriverFlags(flags, _unknown(driver) if flags is None else "", version=f"{program} {table().version}")
    return _cached_flags(view, node_driver) or _query_flags(view, node_driver)


def _not_ours(driver: str) -> str:
    return (
        f"annotation {known.PROGRAM_ANNOTATION} requires {known.OWN_PROGRAM}, which has no driver {driver}; "
        f"remove the annotation to use {known.GO_PROGRAM}"
    )


def _unknown(driver: str) -> str:
    return (
        f"neither {known.OWN_PROGRAM} nor {known.GO_PROGRAM} {table().version} has a driver {driver}; set spec.url to "
        f"the download URL of docker-machine-driver-{driver}, and spec.builtin to false"
    )


def _cached_flags(view: View, node_driver: Object) -> DriverFlags | None:
    """Flags that the driver at this URL reported earlier."""
    spec, status = _spec(node_driver), node_driver.get("status") or {}
    if (spec.get("url"), spec.get("checksum", "")) != (status.get("appliedURL"), status.get("appliedChecksum", "")):
        return None
    driver = known.driver_name(node_driver)
    schema = view.get(DYNAMIC_SCHEMA, schemas.config_schema_name(driver))
    flags = schemas.parse_flags(known.annotations_of(schema).get(schemas.CREATE_FLAGS, "[]")) if schema else ()
    return DriverFlags(flags, name=driver) if flags else None


def _query_flags(view: View, node_driver: Object) -> DriverFlags:
    spec, driver = _spec(node_driver), known.driver_name(node_driver)
    arguments = {"url": spec.get("url", ""), "checksum": spec.get("checksum", ""), "name": driver}
    key = ("driver-flags", node_driver["metadata"]["uid"], arguments["url"], arguments["checksum"])
    result = view.result(key)
    if result is not None and result.done:
        flags = tuple(map(schemas.flag_from_object, result.value["flags"]))
        return DriverFlags(flags, name=result.value["name"])
    effect = Effect("driver-flags", key, arguments, f"read the create flags of driver {driver}")
    return DriverFlags(problem=result.error.partition(": ")[2] if result else "", effects=(effect,))


# --- schemas and registries -----------------------------------------------------------------------------------------


def _publish(view: View, node_driver: Object, driver_flags: DriverFlags, remaining: Sequence[str]) -> Decision:
    query = Decision(effects=driver_flags.effects)
    if driver_flags.flags is None:
        return (
            _report_status(
                view,
                node_driver,
                State(problem=driver_flags.problem, pending=not driver_flags.problem, remaining=remaining),
            )
            + query
        )
    driver = known.driver_name(node_driver)
    if driver_flags.name and driver_flags.name != driver:
        # Jobs find a driver by its file name, so its kinds must have that name.
        renamed = Patch(
            ref(NODE_DRIVER, node_driver),
            {"spec": {"displayName": driver_flags.name}},
            "use the name that the driver reports",
        )
        return Decision(writes=(renamed,))
    try:
        fields = schemas.machine_fields(driver_flags.flags, node_driver)
    except schemas.UnusableFlags as problem:
        return _report_status(
            view, node_driver, State(problem=f"{problem}; use another version of the driver", remaining=remaining)
        )
    writes = (
        *_schemas(node_driver, driver_flags, fields),
        *_registrations(view, driver, _registries(node_driver, remaining)),
    )
    state = State(installed=True, version=driver_flags.version, remaining=remaining)
    return Decision(writes=writes) + _report_status(view, node_driver, state)


def _registries(node_driver: Object, remaining: Sequence[str]) -> Sequence[schemas.Registry]:
    """A deactivated driver keeps its kinds as long as objects of them exist."""
    if is_active(node_driver) or remaining:
        return schemas.REGISTRIES
    return (schemas.CREDENTIAL,)


def _schemas(node_driver: Object, driver_flags: DriverFlags, fields: dict[str, schemas.Field]) -> Iterable[Write]:
    driver = known.driver_name(node_driver)
    config = schemas.schema(schemas.config_schema_name(driver), fields)
    credential_fields = schemas.credential_fields(fields, node_driver)
    credential = schemas.schema(schemas.credential_schema_name(driver), credential_fields)
    owners = [owner_reference(NODE_DRIVER, node_driver, controller=False)]
    for schema in (config, credential):
        schema["metadata"] |= {"labels": {known.DRIVER_LABEL: driver}, "ownerReferences": owners}
    if driver_flags.name:
        config["metadata"]["annotations"] = {schemas.CREATE_FLAGS: schemas.serialize_flags(driver_flags.flags or ())}
    yield Apply(DYNAMIC_SCHEMA, config, f"config schema of driver {driver}")
    yield Apply(DYNAMIC_SCHEMA, credential, f"credential schema of driver {driver}")


def _registrations(view: View, driver: str, wanted: Sequence[schemas.Registry]) -> Writes:
    """Each driver's entries have a field manager of their own, so that drivers do not conflict."""
    writes: list[Write] = []
    for registry in schemas.REGISTRIES:
        existing = schemas.fields_of(view.get(DYNAMIC_SCHEMA, registry.name)).get(registry.key(driver))
        if registry in wanted and existing != registry.entry(driver):
            entry = registry.with_entry(driver)
            writes.append(Apply(DYNAMIC_SCHEMA, entry, f"driver {driver} is active", manager=f"{NAME}-{driver}"))
        elif registry not in wanted and existing is not None:
            removed = {"spec": {"resourceFields": {registry.key(driver): None}}}
            writes.append(Patch(Ref(DYNAMIC_SCHEMA, registry.name), removed, f"driver {driver} is inactive"))
    return tuple(writes)


# --- status ---------------------------------------------------------------------------------------------------------


def _report_status(view: View, node_driver: Object, state: State) -> Decision:
    """Status and annotations in one write, as this kind has no status subresource; fails if the object changed."""
    changes: Object = {}
    if status := difference(node_driver.get("status") or {}, driver_status(node_driver, state, view.now)):
        changes["status"] = status
    hints = schemas.field_hints(node_driver)
    if hints and known.annotations_of(node_driver).get(known.FIELD_HINTS) != hints:
        changes["metadata"] = {"annotations": {known.FIELD_HINTS: hints}}
    revision = node_driver["metadata"]["resourceVersion"]
    here = ref(NODE_DRIVER, node_driver)
    writes = (Patch(here, changes, "update the NodeDriver status", resource_version=revision),) if changes else ()
    reason = state.waits_for(known.driver_name(node_driver))
    return Decision(writes=writes, wait=Wait(reason, here) if reason else None)


# --- removal --------------------------------------------------------------------------------------------------------


def _remove(view: View, node_driver: Object) -> Decision:
    if FINALIZER not in (node_driver["metadata"].get("finalizers") or ()):
        return DONE
    driver = known.driver_name(node_driver)
    if _problem(view, node_driver):
        return Decision(writes=(_finalizers(node_driver, add=False),))  # Nothing was created for it.
    remaining = find_remaining(view, driver, (node_driver,))
    if remaining.names:
        return remaining.needs + _report_status(view, node_driver, State(installed=True, remaining=remaining.names))
    if not remaining.known:
        return remaining.needs
    created = view.select(DYNAMIC_SCHEMA, labels=f"{known.DRIVER_LABEL}={driver}")
    schema_deletes = tuple(delete(DYNAMIC_SCHEMA, schema, f"driver {driver} is removed") for schema in created)
    registrations = _registrations(view, driver, ())
    return Decision(writes=(*registrations, *schema_deletes, _finalizers(node_driver, add=False)))


def _finalizers(node_driver: Object, *, add: bool) -> Patch:
    others = [each for each in node_driver["metadata"].get("finalizers") or () if each != FINALIZER]
    patch = {"metadata": {"finalizers": [*others, FINALIZER] if add else others}}
    reason = "add the finalizer to delete its schemas with it" if add else "its schemas are deleted"
    revision = node_driver["metadata"]["resourceVersion"]
    return Patch(ref(NODE_DRIVER, node_driver), patch, reason, resource_version=revision)


def _spec(node_driver: Object) -> Object:
    return node_driver.get("spec") or {}


# --- watches --------------------------------------------------------------------------------------------------------


def _drivers_of_schema(schema: Object) -> Iterable[str]:
    """A registry concerns all drivers, any other schema its own driver."""
    if schema["metadata"]["name"] in schemas.REGISTRY_NAMES:
        return (ANY,)
    label = (schema["metadata"].get("labels") or {}).get(known.DRIVER_LABEL)
    return (label,) if label else ()


def _drivers_of_object(obj: Object) -> Iterable[str]:
    driver = driver_of_object(obj)
    return (driver,) if driver is not None else ()


def _fields_removed(change: Change) -> bool:
    """Whether fields of a schema were removed or changed; entries added to a registry concern only their driver."""
    if change.old is None or change.new is None:
        return change.new is None
    before, after = schemas.fields_of(change.old), schemas.fields_of(change.new)
    return any(after.get(name) != field for name, field in before.items())


def controller(create_flags: CreateFlags) -> Controller:
    """`create_flags` returns the flags of native drivers, which controllers do not import."""
    return Controller(
        name=NAME,
        kind=NODE_DRIVER,
        reconcile=partial(reconcile, create_flags=create_flags),
        watches=(
            Watches(
                NODE_DRIVER, Indexed(BY_DRIVER, lambda other: (known.driver_name(other),)), changed("spec.displayName")
            ),
            Watches(DYNAMIC_SCHEMA, Indexed(BY_DRIVER, _drivers_of_schema), _fields_removed),
            Watches(DEFINITION),
        ),
        predicate=changed("spec", "metadata.annotations", "metadata.finalizers", "metadata.deletionTimestamp"),
        indexes={NODE_DRIVER: {BY_DRIVER: lambda node_driver: (known.driver_name(node_driver), ANY)}},
        dynamic_watches=DynamicWatches(Indexed(BY_DRIVER, _drivers_of_object), is_deletion),
        pace=0.1,
        workers=4,
    )
