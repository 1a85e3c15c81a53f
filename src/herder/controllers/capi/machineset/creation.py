"""Making Machines, and the bootstrap and infrastructure objects of those that lack them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from herder.api.capi.conditions import find
from herder.api.capi.kinds import MACHINE
from herder.api.capi.names import DISABLE_MACHINE_CREATE, SET_NAME, annotations_of, is_deleting, labels_of
from herder.api.capi.naming import NamingError, machine_name, set_name_label
from herder.controllers.capi.externals import look_up
from herder.controllers.capi.machine_templates import Template, Templates
from herder.controllers.capi.machineset.machines import cloned, new_machine
from herder.controllers.capi.machineset.scope import BATCH, MANAGER, Scope
from herder.controllers.capi.members import only
from herder.engine.control.cache import owned_by
from herder.engine.meta.kinds import GroupVersion, Kind, Object
from herder.engine.runtime.decision import Apply, Decision, Parallel

INCOMPLETE = "set-incomplete"
LABELLED = "set-labelled"  # by "<namespace>/<set name as label>", whoever controls them

_NOT_SEEN = "ObjectDoesNotExist"


def create(scope: Scope, templates: Templates, missing: int) -> Decision:
    machines = [
        Apply(MACHINE, new_machine(scope.machine_set, templates, name), "there are too few Machines", manager=MANAGER)
        for name in _new_names(scope, min(missing, BATCH))
    ]
    return Decision(writes=(Parallel(tuple(machines)),))


def obstacles(scope: Scope, templates: Templates) -> Iterator[str]:
    """What in the objects themselves keeps Machines from being made, in words."""
    if is_deleting(scope.cluster):
        yield f"Cluster {scope.cluster['metadata']['name']} is being deleted"
    if annotations_of(scope.machine_set).get(DISABLE_MACHINE_CREATE) == "true":
        yield f"the annotation {DISABLE_MACHINE_CREATE} is set"
    strays = scope.view.count(MACHINE, (LABELLED, _label_word(scope))) - scope.members.total
    if strays > 0:  # whatever takes Machines away from their set, it must not make it create without end
        yield f"{strays} Machines carry this MachineSet's label {SET_NAME}, but it does not control them"
    try:
        if _name(scope, "one") == _name(scope, "two"):
            yield "spec.machineNaming.template: {{ .random }} is missing, so that all Machines would have the same name"
    except NamingError as error:
        yield f"spec.machineNaming.template: {error}"
    kinds = _Kinds(scope)
    for template in templates.all:
        if template.found.kind and kinds.of({**template.reference, "kind": template.made_kind}) is None:
            yield f"the kind {template.made_kind}, which {template.kind} makes, is not defined for a known contract"


def complete(scope: Scope, templates: Templates) -> Decision:
    """A Machine is made before its objects, and the manager may stop in between: what lacks is made up for."""
    if not templates.complete or is_deleting(scope.cluster) or not scope.members.count(INCOMPLETE):
        return Decision()
    kinds = _Kinds(scope)
    objects: list[Apply] = []
    for machine in scope.members.listed(INCOMPLETE):
        objects += _objects(scope, templates, machine, kinds)
        if len(objects) >= 2 * BATCH:
            break
    return Decision(writes=(Parallel(tuple(objects)),) if objects else ())


def _new_names(scope: Scope, count: int) -> list[str]:
    """Decided again on the same view, the same names come out: nothing is made twice."""
    revision, slot = scope.machine_set["metadata"]["resourceVersion"], scope.members.total
    names: dict[str, None] = {}
    while len(names) < count:
        name = _name(scope, scope.view.unique(f"{scope.uid}/{revision}/{slot}"))
        slot += 1
        if scope.view.get(MACHINE, name) is None:
            names[name] = None
    return list(names)


def _name(scope: Scope, random: str) -> str:
    spec = scope.machine_set["spec"]
    template = (spec.get("machineNaming") or {}).get("template", "")
    return machine_name(template, spec["clusterName"], scope.name, random)


def _label_word(scope: Scope) -> str:
    return f"{scope.namespace}/{set_name_label(scope.name)}"


# --- the objects beside a Machine -----------------------------------------------------------------------------------


class _Kinds:
    """The kinds of objects that Machines name, each looked up once in a pass. None: not defined, or unusable."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known: dict[tuple[str, str], Kind | None] = {}

    def of(self, reference: Object) -> Kind | None:
        word = (reference.get("apiGroup", ""), reference["kind"])
        if word not in self._known:
            self._known[word] = look_up(self._scope.view, reference, self._scope.namespace).kind
        return self._known[word]


def _objects(scope: Scope, templates: Templates, machine: Object, kinds: _Kinds) -> Iterator[Apply]:
    for template, reference in _pairs(templates, machine):
        kind = kinds.of(reference)
        if kind is None or _exists(scope, kind, machine, reference):
            continue
        assert template.found.obj is not None
        made = kind._replace(version=GroupVersion.parse(template.found.obj["apiVersion"]).version)
        obj = cloned(template, made, scope.machine_set, machine)
        yield Apply(made, obj, f"Machine {machine['metadata']['name']} lacks it", manager=MANAGER)


def _pairs(templates: Templates, machine: Object) -> Iterable[tuple[Template, Object]]:
    """Only what the Machine names as one made for it from this template: not what a user put in its place."""
    spec, name = machine["spec"], machine["metadata"]["name"]
    named = (
        (templates.bootstrap, (spec.get("bootstrap") or {}).get("configRef")),
        (templates.infrastructure, spec.get("infrastructureRef")),
    )
    for template, reference in named:
        if template and reference and (reference["kind"], reference["name"]) == (template.made_kind, name):
            yield template, reference


def _exists(scope: Scope, kind: Kind, machine: Object, reference: Object) -> bool:
    if scope.view.count(kind, ("controller", owned_by(scope.namespace, machine["metadata"]["uid"]))):
        return True
    return scope.view.get(kind, reference["name"]) is not None


# --- indexes --------------------------------------------------------------------------------------------------------


def _may_lack_objects(machine: Object) -> bool:
    """Until its own conditions tell that both objects have been seen; once provisioned, what is gone stays gone."""
    initialization = (machine.get("status") or {}).get("initialization") or {}
    if is_deleting(machine) or initialization.get("infrastructureProvisioned"):
        return False
    conditions = [find(machine, type_) for type_ in ("BootstrapConfigReady", "InfrastructureReady")]
    return any(reported is None or reported.get("reason") == _NOT_SEEN for reported in conditions)


def _by_label(machine: Object) -> Iterable[str]:
    name = labels_of(machine).get(SET_NAME)
    return [f"{machine['metadata']['namespace']}/{name}"] if name else ()


INDEXES = {INCOMPLETE: only(_may_lack_objects), LABELLED: _by_label}
