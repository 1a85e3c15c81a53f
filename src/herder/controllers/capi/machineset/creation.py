"""Create Machines, and the bootstrap and infrastructure objects that existing Machines lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE, MACHINE_SET
from herder.api.capi.membership import cluster_name
from herder.api.capi.names import DISABLE_MACHINE_CREATE, SET_NAME, annotations_of, is_deleting, labels_of
from herder.api.capi.naming import NamingError, machine_name, set_name_label
from herder.api.events import normal
from herder.controllers.capi.externals import look_up
from herder.controllers.capi.machine_templates import Template, Templates
from herder.controllers.capi.machineset.machines import cloned, new_machine
from herder.controllers.capi.machineset.scope import BATCH, MANAGER, MachineSetScope
from herder.controllers.capi.set_members import owned_where
from herder.engine.control.cache import owned_by
from herder.engine.meta.kinds import GroupVersion, Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Parallel

INCOMPLETE = "set-incomplete"
LABELLED = "set-labelled"  # by "<namespace>/<Cluster>/<set name as label>", regardless of their controller

_OBJECT_MISSING = "ObjectDoesNotExist"


def create(scope: MachineSetScope, templates: Templates, missing: int) -> Decision:
    machines = [
        Apply(
            MACHINE,
            new_machine(scope.machine_set, templates, name),
            "spec.replicas is greater than the number of Machines",
            manager=MANAGER,
            events=(normal(MACHINE_SET, scope.machine_set, "SuccessfulCreate", f'Created Machine "{name}"'),),
        )
        for name in _new_names(scope, min(missing, BATCH))
    ]
    return Decision(writes=(Parallel(tuple(machines)),))


def obstacles(scope: MachineSetScope, templates: Templates) -> Iterator[str]:
    """Messages about why Machines cannot be created, as far as the objects themselves show it."""
    if is_deleting(scope.cluster):
        yield f"Cluster {scope.cluster['metadata']['name']} is being deleted"
    if annotations_of(scope.machine_set).get(DISABLE_MACHINE_CREATE) == "true":
        yield f"the annotation {DISABLE_MACHINE_CREATE} is set"
    strays = scope.view.count(MACHINE, (LABELLED, _label_key(scope))) - scope.members.total
    if strays > 0:  # If something removes the owner references of Machines, the set must not create new ones endlessly.
        yield f"{strays} Machines carry this MachineSet's label {SET_NAME}, but it does not control them"
    try:
        if _name(scope, "one") == _name(scope, "two"):
            yield "spec.machineNaming.template: {{ .random }} is missing, so that all Machines would have the same name"
    except NamingError as error:
        yield f"spec.machineNaming.template: {error}"
    kinds = _Kinds(scope)
    for template in templates.all:
        if template.found.kind and kinds.of({**template.reference, "kind": template.cloned_kind}) is None:
            yield f"the kind {template.cloned_kind}, which {template.kind} makes, is not defined for a known contract"


def complete(scope: MachineSetScope, templates: Templates) -> Decision:
    """Create missing bootstrap and infrastructure objects.

    A Machine is created before its objects, and the manager may stop in between.
    """
    if not templates.complete or is_deleting(scope.cluster) or not scope.members.count(INCOMPLETE):
        return Decision()
    kinds = _Kinds(scope)
    objects: list[Apply] = []
    for machine in scope.members.listed(INCOMPLETE):
        objects += _objects(scope, templates, machine, kinds)
        if len(objects) >= 2 * BATCH:
            break
    return Decision(writes=(Parallel(tuple(objects)),) if objects else ())


def _new_names(scope: MachineSetScope, count: int) -> list[str]:
    """Names of new Machines, derived from the revision of the set: a repeated decision yields the same names and
    creates no duplicates."""
    revision, slot = scope.machine_set["metadata"]["resourceVersion"], scope.members.total
    names: dict[str, None] = {}
    while len(names) < count:
        name = _name(scope, scope.view.unique(f"{scope.uid}/{revision}/{slot}"))
        slot += 1
        if scope.view.get(MACHINE, name) is None:
            names[name] = None
    return list(names)


def _name(scope: MachineSetScope, random: str) -> str:
    spec = scope.machine_set["spec"]
    template = (spec.get("machineNaming") or {}).get("template", "")
    return machine_name(template, spec["clusterName"], scope.name, random)


def _label_key(scope: MachineSetScope) -> str:
    return f"{scope.namespace}/{cluster_name(scope.machine_set)}/{set_name_label(scope.name)}"


# --- bootstrap and infrastructure objects ---------------------------------------------------------------------------


class _Kinds:
    """Cache of the kinds that Machines reference, for one pass. None if not defined or unusable."""

    def __init__(self, scope: MachineSetScope) -> None:
        self._scope = scope
        self._known: dict[tuple[str, str], Kind | None] = {}

    def of(self, reference: Object) -> Kind | None:
        word = (reference.get("apiGroup", ""), reference["kind"])
        if word not in self._known:
            self._known[word] = look_up(self._scope.view, reference, self._scope.namespace).kind
        return self._known[word]


def _objects(scope: MachineSetScope, templates: Templates, machine: Object, kinds: _Kinds) -> Iterator[Apply]:
    for template, reference in _pairs(templates, machine):
        kind = kinds.of(reference)
        if kind is None or _exists(scope, kind, machine, reference):
            continue
        assert template.found.obj is not None
        made = kind._replace(version=GroupVersion.parse(template.found.obj["apiVersion"]).version)
        obj = cloned(template, made, scope.machine_set, machine)
        yield Apply(made, obj, f"Machine {machine['metadata']['name']} lacks it", manager=MANAGER)


def _pairs(templates: Templates, machine: Object) -> Iterable[tuple[Template, Object]]:
    """Templates with the Machine's references to their clones; references that a user replaced are left out."""
    spec, name = machine["spec"], machine["metadata"]["name"]
    named = (
        (templates.bootstrap, (spec.get("bootstrap") or {}).get("configRef")),
        (templates.infrastructure, spec.get("infrastructureRef")),
    )
    for template, reference in named:
        if template and reference and (reference["kind"], reference["name"]) == (template.cloned_kind, name):
            yield template, reference


def _exists(scope: MachineSetScope, kind: Kind, machine: Object, reference: Object) -> bool:
    if scope.view.count(kind, ("controller", owned_by(scope.namespace, machine["metadata"]["uid"]))):
        return True
    return scope.view.get(kind, reference["name"]) is not None


# --- indexes --------------------------------------------------------------------------------------------------------


def _may_lack_objects(machine: Object) -> bool:
    """Whether bootstrap or infrastructure object may be missing.

    Holds until the Machine's conditions show that both have been seen. After provisioning, deleted objects are not
    recreated.
    """
    initialization = (machine.get("status") or {}).get("initialization") or {}
    if is_deleting(machine) or initialization.get("infrastructureProvisioned"):
        return False
    conditions = [find(machine, type_) for type_ in ("BootstrapConfigReady", "InfrastructureReady")]
    return any(reported is None or reported.get("reason") == _OBJECT_MISSING for reported in conditions)


def _by_label(machine: Object) -> Iterable[str]:
    name = labels_of(machine).get(SET_NAME)
    return [f"{machine['metadata']['namespace']}/{cluster_name(machine)}/{name}"] if name else ()


INDEXES = {INCOMPLETE: owned_where(_may_lack_objects), LABELLED: _by_label}
