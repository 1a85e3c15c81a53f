"""Bootstrap and infrastructure templates of MachineSets and MachineDeployments: lookup, ownership and watch keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from herder.api.capi.contract import definition_name, reference_group
from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME, cluster_key, labels_of
from herder.api.references.approvals import problem
from herder.api.references.catalogue import Target
from herder.api.writes import object_patch, owner_reference, with_owner
from herder.controllers.capi.externals import External, look_up
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.runtime.decision import Patch
from herder.engine.runtime.handlers import changed
from herder.engine.runtime.view import View

SUFFIX = "Template"

# --- lookup ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Template:
    """A template reference and what it resolves to."""

    reference: Object
    found: External

    @property
    def kind(self) -> str:
        return str(self.reference["kind"])

    @property
    def cloned_kind(self) -> str:
        """Kind of the objects that are cloned from this template."""
        return self.kind.removesuffix(SUFFIX)


@dataclass(frozen=True, slots=True)
class Templates:
    """The bootstrap and infrastructure templates of one MachineSet or MachineDeployment."""

    bootstrap: Template | None  # None if the user provides the bootstrap data
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
        """Patches that add the Cluster as an owner of the templates, so that they are deleted with it."""
        return tuple(patch for template in self.all for patch in _claim(template.found, cluster))


def find_templates(view: View, owner: Object, namespace: str) -> Templates:
    """Look up the templates of a MachineSet or MachineDeployment."""
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
    """Look up a template and check that it is the object that admission approved.

    A template that was recreated under the same name may use credentials that the author of the reference may not use.
    """
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


# --- index keys and predicates --------------------------------------------------------------------------------------

REFERENCES_INDEX = "refers"
"""Index of MachineSets and MachineDeployments by the Cluster, templates and CRDs that they depend on."""


def referenced_keys(obj: Object) -> Iterable[str]:
    """Indexer for REFERENCES_INDEX."""
    namespace, spec = obj["metadata"]["namespace"], obj["spec"]["template"]["spec"]
    yield _cluster_key(namespace, obj["spec"]["clusterName"])
    for reference in ((spec.get("bootstrap") or {}).get("configRef"), spec.get("infrastructureRef")):
        if reference:
            group, kind = reference_group(reference), reference["kind"]
            yield _object_key(group, kind, namespace, reference["name"])
            yield definition_name(group, kind)


def external_keys(external: Object) -> Iterable[str]:
    """Index keys of a provider object: its own, and for a control plane object that of its Cluster."""
    meta, kind = external["metadata"], GroupVersionKind.of(external)
    yield _object_key(kind.group, kind.kind, meta.get("namespace", ""), meta["name"])
    if any(owner.get("kind") == CLUSTER.kind for owner in meta.get("ownerReferences") or ()):
        name = labels_of(external).get(CLUSTER_NAME)
        if name and not kind.kind.endswith(SUFFIX):
            yield _cluster_key(meta.get("namespace", ""), name)


def cluster_index_key(cluster: Object) -> Iterable[str]:
    yield _cluster_key(cluster["metadata"]["namespace"], cluster["metadata"]["name"])


def definition_index_key(definition: Object) -> Iterable[str]:
    yield definition["metadata"]["name"]


external_predicate = changed("metadata.ownerReferences", "spec.version", "status.version", "status.versions")
"""Templates matter by their existence, control planes by their version."""


def _object_key(group: str, kind: str, namespace: str, name: str) -> str:
    return f"{group}/{kind}/{namespace}/{name}"


def _cluster_key(namespace: str, name: str) -> str:
    return f"cluster/{cluster_key(namespace, name)}"
