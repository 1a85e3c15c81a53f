"""The bootstrap and infrastructure templates that MachineSets and MachineDeployments name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from herder.api.capi.contract import definition_name, reference_group
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME, cluster_key, labels_of
from herder.api.references.approvals import problem
from herder.api.references.catalogue import Target
from herder.api.writing import object_patch, owner_reference, with_owner
from herder.controllers.capi.externals import External, look_up
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.handlers import changed
from herder.engine.runtime.view import View

SUFFIX = "Template"

# --- finding them ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Template:
    reference: Object
    found: External

    @property
    def kind(self) -> str:
        return str(self.reference["kind"])

    @property
    def made_kind(self) -> str:
        """The kind of the objects that are made from it."""
        return self.kind.removesuffix(SUFFIX)


@dataclass(frozen=True, slots=True)
class Templates:
    bootstrap: Template | None  # None where the user brings the bootstrap data
    infrastructure: Template

    @property
    def all(self) -> list[Template]:
        return [template for template in (self.bootstrap, self.infrastructure) if template]

    @property
    def complete(self) -> bool:
        return all(template.found.obj is not None for template in self.all)

    def missing(self) -> str:
        kinds = [template.kind for template in self.all if template.found.missing]
        if not kinds:
            return ""
        return f"{' and '.join(kinds)} {'does' if len(kinds) == 1 else 'do'} not exist"

    def problems(self) -> list[str]:
        return [f"{template.kind}: {template.found.problem}" for template in self.all if template.found.problem]

    def claims(self, cluster: Object) -> tuple[Patch, ...]:
        """Templates live and die with their Cluster."""
        return tuple(patch for template in self.all for patch in _claim(template.found, cluster))


def find_templates(view: View, owner: Object, namespace: str) -> Templates:
    """The templates of a MachineSet or MachineDeployment."""
    spec = owner["spec"]["template"]["spec"]
    config = (spec.get("bootstrap") or {}).get("configRef")
    infrastructure = spec.get("infrastructureRef") or {}
    return Templates(
        Template(config, _approved(view, owner, "bootstrap.configRef", config, namespace)) if config else None,
        Template(
            {"kind": "", **infrastructure}, _approved(view, owner, "infrastructureRef", infrastructure, namespace)
        ),
    )


def _approved(view: View, owner: Object, field: str, reference: Object, namespace: str) -> External:
    """A template that replaced the approved one may use what the author of the reference may not."""
    found = look_up(view, reference, namespace)
    if found.obj is None or found.kind is None:
        return found
    target = Target(found.kind.group, found.kind.plural, namespace, reference["name"])
    why = problem(owner, f"spec.template.spec.{field}", target, found.obj["metadata"]["uid"])
    return External(problem=why) if why else found


def _claim(template: External, cluster: Object) -> tuple[Patch, ...]:
    reference = owner_reference(CLUSTER, cluster, controller=False)
    if template.obj is None or template.kind is None or _owned_by(template.obj, reference):
        return ()
    claimed = with_owner(template.obj, reference)
    return object_patch(template.kind, template.obj, claimed, "a template belongs to the Cluster")


def _owned_by(obj: Object, reference: Object) -> bool:
    owners = obj["metadata"].get("ownerReferences") or []
    return any(all(owner.get(field) == value for field, value in reference.items()) for owner in owners)


# --- hearing of them ------------------------------------------------------------------------------------------------

REFERS = "refers"
"""An index of MachineSets and MachineDeployments: by the objects whose news they wait for."""


def refers(obj: Object) -> Iterable[str]:
    namespace, spec = obj["metadata"]["namespace"], obj["spec"]["template"]["spec"]
    yield _cluster_word(namespace, obj["spec"]["clusterName"])
    for reference in ((spec.get("bootstrap") or {}).get("configRef"), spec.get("infrastructureRef")):
        if reference:
            group, kind = reference_group(reference), reference["kind"]
            yield _object_word(group, kind, namespace, reference["name"])
            yield definition_name(group, kind)


def itself_and_its_cluster(external: Object) -> Iterable[str]:
    """Of a provider's object: a template wakes who names it, a control plane those of its Cluster."""
    meta, kind = external["metadata"], GroupVersionKind.of(external)
    yield _object_word(kind.group, kind.kind, meta.get("namespace", ""), meta["name"])
    if any(owner.get("kind") == CLUSTER.kind for owner in meta.get("ownerReferences") or ()):
        name = labels_of(external).get(CLUSTER_NAME)
        if name and not kind.kind.endswith(SUFFIX):
            yield _cluster_word(meta.get("namespace", ""), name)


def cluster_itself(cluster: Object) -> Iterable[str]:
    yield _cluster_word(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def definition_itself(definition: Object) -> Iterable[str]:
    yield definition["metadata"]["name"]


external_matters = changed("metadata.ownerReferences", "spec.version", "status.version", "status.versions")
"""Templates matter by being there, control planes by their version."""


def _object_word(group: str, kind: str, namespace: str, name: str) -> str:
    return f"{group}/{kind}/{namespace}/{name}"


def _cluster_word(namespace: str, name: str) -> str:
    return f"cluster/{cluster_key(namespace, name)}"
