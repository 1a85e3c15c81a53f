"""A NodeDriver becomes DynamicSchemas: of its machines, of its credentials, and its place in the registries.

What a driver can be told is in its flags. Our own drivers say it themselves, those of rancher-machine are in a table,
and a driver that is downloaded is asked once; what it said is kept beside its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from herder import __version__
from herder.api.capi.kinds import DEFINITION
from herder.api.machines import known, schemas
from herder.api.machines.driver_admission import is_active
from herder.api.machines.flags import Flag
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER
from herder.api.machines.tables import table, table_flags
from herder.api.writing import delete, difference, owner_reference, ref
from herder.controllers.machines.driver_conditions import State, told
from herder.controllers.machines.left import Left, driver_of_object, gone, objects_left
from herder.engine.control.cache import Change
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.decision import DONE, Apply, Decision, Effect, Patch, Ref, Wait, Write, Writes
from herder.engine.runtime.handlers import Follows, Indexed, Watches, changed
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
    left = Left() if is_active(node_driver) else objects_left(view, driver, (node_driver,))
    if not left.known:
        return left.needs
    if not (is_active(node_driver) or left.names or _spec(node_driver).get("addCloudCredential")):
        return Decision(writes=_registrations(view, driver, ())) + _report_status(view, node_driver, State())
    return left.needs + _offer(view, node_driver, _learn(view, node_driver, create_flags), left.names)


def _problem(view: View, node_driver: Object) -> str:
    """Why this NodeDriver cannot bring a driver at all."""
    driver = known.driver_name(node_driver)
    first = min(view.select(NODE_DRIVER, index=(BY_DRIVER, driver)), key=known.age)["metadata"]["name"]
    if first != view.name:
        return f"NodeDriver {first} brings driver {driver} already: delete one of the two"
    is_named = known.is_built_in(node_driver) or _spec(node_driver).get("displayName")
    return known.name_problem(driver) if is_named else ""  # else its program's name says what it is called


# --- what the driver can be told ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Learned:
    """The driver's flags; None where they are not known (yet), and then perhaps why."""

    flags: tuple[Flag, ...] | None = None
    problem: str = ""
    name: str = ""  # what a downloaded driver is called by itself
    version: str = ""  # of the machine program that has it
    effects: tuple[Effect, ...] = ()


def _learn(view: View, node_driver: Object, create_flags: CreateFlags) -> Learned:
    driver, program = known.driver_name(node_driver), known.program_of(node_driver)
    if program == known.OWN_PROGRAM:
        flags = create_flags(driver) if known.is_built_in(node_driver) else None
        if flags is None:
            return Learned(problem=_not_ours(driver))
        return Learned(flags, version=f"{program} {__version__}")
    if known.is_built_in(node_driver):
        flags = table_flags(driver)
        return Learned(flags, _unknown(driver) if flags is None else "", version=f"{program} {table().version}")
    return _kept(view, node_driver) or _asked(view, node_driver)


def _not_ours(driver: str) -> str:
    return (
        f"annotation {known.PROGRAM_ANNOTATION} asks for {known.OWN_PROGRAM}, which has no driver {driver}: "
        f"remove it, so that {known.GO_PROGRAM} is used"
    )


def _unknown(driver: str) -> str:
    return (
        f"neither {known.OWN_PROGRAM} nor {known.GO_PROGRAM} {table().version} has a driver {driver}: set spec.url to "
        f"where docker-machine-driver-{driver} is downloaded from, and spec.builtin to false"
    )


def _kept(view: View, node_driver: Object) -> Learned | None:
    """What the driver at this URL said when it was asked."""
    spec, status = _spec(node_driver), node_driver.get("status") or {}
    if (spec.get("url"), spec.get("checksum", "")) != (status.get("appliedURL"), status.get("appliedChecksum", "")):
        return None
    driver = known.driver_name(node_driver)
    schema = view.get(DYNAMIC_SCHEMA, schemas.config_schema_name(driver))
    flags = schemas.read(known.annotations_of(schema).get(schemas.CREATE_FLAGS, "[]")) if schema else ()
    return Learned(flags, name=driver) if flags else None


def _asked(view: View, node_driver: Object) -> Learned:
    spec, driver = _spec(node_driver), known.driver_name(node_driver)
    arguments = {"url": spec.get("url", ""), "checksum": spec.get("checksum", ""), "name": driver}
    key = ("driver-flags", node_driver["metadata"]["uid"], arguments["url"], arguments["checksum"])
    result = view.result(key)
    if result is not None and result.done:
        flags = tuple(map(schemas.from_plain, result.value["flags"]))
        return Learned(flags, name=result.value["name"])
    effect = Effect("driver-flags", key, arguments, f"what driver {driver} can be told is not known")
    return Learned(problem=result.error.partition(": ")[2] if result else "", effects=(effect,))


# --- what is made of it ---------------------------------------------------------------------------------------------


def _offer(view: View, node_driver: Object, learned: Learned, left: Sequence[str]) -> Decision:
    asks = Decision(effects=learned.effects)
    if learned.flags is None:
        return (
            _report_status(view, node_driver, State(problem=learned.problem, pending=not learned.problem, left=left))
            + asks
        )
    driver = known.driver_name(node_driver)
    if learned.name and learned.name != driver:
        # Jobs find a driver by the name of its file, so that is what its kinds must be named after.
        renamed = Patch(ref(NODE_DRIVER, node_driver), {"spec": {"displayName": learned.name}}, "the driver's own name")
        return Decision(writes=(renamed,))
    try:
        fields = schemas.machine_fields(learned.flags, node_driver)
    except schemas.UnusableFlags as problem:
        return _report_status(
            view, node_driver, State(problem=f"{problem}: use another version of the driver", left=left)
        )
    writes = (
        *_schemas(node_driver, learned, fields),
        *_registrations(view, driver, _registries(node_driver, left)),
    )
    state = State(installed=True, version=learned.version, left=left)
    return Decision(writes=writes) + _report_status(view, node_driver, state)


def _registries(node_driver: Object, left: Sequence[str]) -> Sequence[schemas.Registry]:
    """A driver that was switched off keeps its kinds for as long as there are objects of them."""
    if is_active(node_driver) or left:
        return schemas.REGISTRIES
    return (schemas.CREDENTIAL,)


def _schemas(node_driver: Object, learned: Learned, fields: dict[str, schemas.Field]) -> Iterable[Write]:
    driver = known.driver_name(node_driver)
    config = schemas.schema(schemas.config_schema_name(driver), fields)
    credential_fields = schemas.credential_fields(fields, node_driver)
    credential = schemas.schema(schemas.credential_schema_name(driver), credential_fields)
    owners = [owner_reference(NODE_DRIVER, node_driver, controller=False)]
    for schema in (config, credential):
        schema["metadata"] |= {"labels": {known.DRIVER_LABEL: driver}, "ownerReferences": owners}
    if learned.name:
        config["metadata"]["annotations"] = {schemas.CREATE_FLAGS: schemas.written(learned.flags or ())}
    yield Apply(DYNAMIC_SCHEMA, config, f"what machines of driver {driver} can be told")
    yield Apply(DYNAMIC_SCHEMA, credential, f"what credentials of driver {driver} hold")


def _registrations(view: View, driver: str, wanted: Sequence[schemas.Registry]) -> Writes:
    """Each driver has its own entries, under a manager of its own: nobody waits for anybody else."""
    writes: list[Write] = []
    for registry in schemas.REGISTRIES:
        there = schemas.fields_of(view.get(DYNAMIC_SCHEMA, registry.name)).get(registry.key(driver))
        if registry in wanted and there != registry.entry(driver):
            entry = registry.with_entry(driver)
            writes.append(Apply(DYNAMIC_SCHEMA, entry, f"driver {driver} is offered", manager=f"{NAME}-{driver}"))
        elif registry not in wanted and there is not None:
            removed = {"spec": {"resourceFields": {registry.key(driver): None}}}
            writes.append(Patch(Ref(DYNAMIC_SCHEMA, registry.name), removed, f"driver {driver} is not offered"))
    return tuple(writes)


# --- telling --------------------------------------------------------------------------------------------------------


def _report_status(view: View, node_driver: Object, state: State) -> Decision:
    """The status is no subresource of this kind, so all goes in one write; refused if somebody was quicker."""
    changes: Object = {}
    if status := difference(node_driver.get("status") or {}, told(node_driver, state, view.now)):
        changes["status"] = status
    hints = schemas.field_hints(node_driver)
    if hints and known.annotations_of(node_driver).get(known.FIELD_HINTS) != hints:
        changes["metadata"] = {"annotations": {known.FIELD_HINTS: hints}}
    revision = node_driver["metadata"]["resourceVersion"]
    here = ref(NODE_DRIVER, node_driver)
    writes = (Patch(here, changes, "what became of the driver", resource_version=revision),) if changes else ()
    reason = state.waits_for(known.driver_name(node_driver))
    return Decision(writes=writes, wait=Wait(reason, here) if reason else None)


# --- removal --------------------------------------------------------------------------------------------------------


def _remove(view: View, node_driver: Object) -> Decision:
    if FINALIZER not in (node_driver["metadata"].get("finalizers") or ()):
        return DONE
    driver = known.driver_name(node_driver)
    if _problem(view, node_driver):
        return Decision(writes=(_finalizers(node_driver, add=False),))  # nothing was ever made for it
    left = objects_left(view, driver, (node_driver,))
    if left.names:
        return left.needs + _report_status(view, node_driver, State(installed=True, left=left.names))
    if not left.known:
        return left.needs
    made = view.select(DYNAMIC_SCHEMA, labels=f"{known.DRIVER_LABEL}={driver}")
    gone_with_it = tuple(delete(DYNAMIC_SCHEMA, schema, f"driver {driver} is removed") for schema in made)
    registrations = _registrations(view, driver, ())
    return Decision(writes=(*registrations, *gone_with_it, _finalizers(node_driver, add=False)))


def _finalizers(node_driver: Object, *, add: bool) -> Patch:
    others = [each for each in node_driver["metadata"].get("finalizers") or () if each != FINALIZER]
    patch = {"metadata": {"finalizers": [*others, FINALIZER] if add else others}}
    reason = "its schemas are to go with it" if add else "nothing of it is left"
    revision = node_driver["metadata"]["resourceVersion"]
    return Patch(ref(NODE_DRIVER, node_driver), patch, reason, resource_version=revision)


def _spec(node_driver: Object) -> Object:
    return node_driver.get("spec") or {}


# --- what sets it off -----------------------------------------------------------------------------------------------


def _drivers_of_schema(schema: Object) -> Iterable[str]:
    """A registry concerns all; a schema the driver that it was made for."""
    if schema["metadata"]["name"] in schemas.REGISTRY_NAMES:
        return (ANY,)
    label = (schema["metadata"].get("labels") or {}).get(known.DRIVER_LABEL)
    return (label,) if label else ()


def _drivers_of_object(obj: Object) -> Iterable[str]:
    driver = driver_of_object(obj)
    return (driver,) if driver is not None else ()


def _taken_from(change: Change) -> bool:
    """Of schemas, what others did to them: entries that are added to a registry concern nobody else."""
    if change.old is None or change.new is None:
        return change.new is None
    before, after = schemas.fields_of(change.old), schemas.fields_of(change.new)
    return any(after.get(name) != field for name, field in before.items())


def controller(create_flags: CreateFlags) -> Controller:
    """`create_flags` tells the flags of our own drivers, which are no concern of controllers otherwise."""
    return Controller(
        name=NAME,
        kind=NODE_DRIVER,
        reconcile=partial(reconcile, create_flags=create_flags),
        watches=(
            Watches(
                NODE_DRIVER, Indexed(BY_DRIVER, lambda other: (known.driver_name(other),)), changed("spec.displayName")
            ),
            Watches(DYNAMIC_SCHEMA, Indexed(BY_DRIVER, _drivers_of_schema), _taken_from),
            Watches(DEFINITION),
        ),
        predicate=changed("spec", "metadata.annotations", "metadata.finalizers", "metadata.deletionTimestamp"),
        indexes={NODE_DRIVER: {BY_DRIVER: lambda node_driver: (known.driver_name(node_driver), ANY)}},
        follows=Follows(Indexed(BY_DRIVER, _drivers_of_object), gone),
        pace=0.1,
        workers=4,
    )
