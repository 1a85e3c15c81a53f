"""Resolve references to provider objects (bootstrap, infrastructure, control plane, templates) by CRD contract."""

from __future__ import annotations

from typing import NamedTuple

from herder.api.capi.contract import Contract, definition_name, external_kind, reference_group
from herder.api.capi.kinds import DEFINITION
from herder.api.references.approvals import recreated
from herder.api.references.catalogue import Target
from herder.engine.meta.kinds import Kind, Object
from herder.engine.runtime.view import View


class External(NamedTuple):
    """Result of resolving a reference.

    `problem` says why the reference cannot be resolved. With neither `obj` nor `problem` the object does not exist;
    with no `kind` either, its CustomResourceDefinition does not exist. `replaced` says that the referenced object was
    deleted and another one has its name.
    """

    obj: Object | None = None
    kind: Kind | None = None
    contract: Contract = Contract.V1BETA2
    problem: str = ""
    replaced: bool = False

    @property
    def missing(self) -> bool:
        return self.obj is None and not self.problem

    @property
    def deleted(self) -> bool:
        """Whether nothing is left to delete: an object that took the name of the referenced one is not deleted."""
        return self.missing or self.replaced


def look_up(view: View, reference: Object | None, namespace: str) -> External:
    """Resolve a reference.

    Raises KindNotWatched if the kind is not watched yet: the runtime starts an informer and reconciles again.
    """
    if not reference or not reference.get("kind") or not reference.get("name"):
        return External(problem="the reference names no object")
    definition = view.get(DEFINITION, definition_name(reference_group(reference), reference["kind"]))
    if definition is None:
        return External()
    found = external_kind(reference, definition)
    if isinstance(found, str):
        return External(problem=found)
    kind, contract = found
    return External(view.get(kind, reference["name"], namespace), kind, contract)


def look_up_referenced(view: View, owner: Object, path: str, reference: Object | None) -> External:
    """Resolve a reference of `owner`, and check that it is the object that admission approved.

    Otherwise a user could name an object of their own, delete it, and have the manager change or delete an object that
    another user creates under the same name.
    """
    namespace = owner["metadata"]["namespace"]
    found = look_up(view, reference, namespace)
    if found.obj is None or found.kind is None:
        return found
    target = Target(found.kind.group, found.kind.plural, namespace, found.obj["metadata"]["name"])
    why = recreated(owner, path, target, found.obj["metadata"]["uid"])
    return External(problem=why, replaced=True) if why else found
