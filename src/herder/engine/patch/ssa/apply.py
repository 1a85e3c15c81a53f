"""Server-side apply of one configuration to one object."""

from __future__ import annotations

from herder.engine.meta.errors import BadRequest, StatusError
from herder.engine.meta.errors import Conflict as ConflictError
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.patch.fieldpath.fieldset import FieldSet, contains, difference, path_text
from herder.engine.patch.fieldpath.paths import owned_paths
from herder.engine.patch.patches.json_patch import copy_json
from herder.engine.patch.ssa import last_applied
from herder.engine.patch.ssa.managers import APPLY, UPDATE, ManagerId, Managers, Owned, decode, encode
from herder.engine.patch.ssa.ownership import STRIPPED, Conflict, Conflicts, move_ownership, reconciled
from herder.engine.patch.ssa.prune import prune
from herder.engine.patch.ssa.versions import Versions
from herder.engine.patch.typed.compare import compare, equal
from herder.engine.patch.typed.list_items import TypedError
from herder.engine.patch.typed.merge import merge
from herder.engine.patch.typed.types import TypeRef
from herder.engine.patch.typed.validate import check

BEFORE_FIRST_APPLY = "before-first-apply"


class Application:
    """An apply request and the live object."""

    def __init__(
        self, live: Object | None, applied: Object, versions: Versions, manager: str, subresource: str, now: str
    ) -> None:
        metadata = (live or {}).get("metadata") or {}
        self.live = without_managed_fields(live or {})
        self.applied = applied
        self.versions = versions
        self.manager = manager
        self.manager_id = ManagerId.of(manager, APPLY, versions.request, subresource)
        self.now = now
        found = versions.type_at(versions.request)
        if found is None:
            raise StatusError(f"no corresponding type for {describe_kind(applied)}", reason="")
        self.type: TypeRef = found
        self.managers = decode(metadata.get("managedFields") or [], trusted=True)

    def check(self, kind: str) -> None:
        """Reject a configuration of another kind or with managedFields."""
        sent = GroupVersionKind.of(self.applied)
        if sent.api_version != self.versions.request or (kind and sent.kind != kind):
            raise BadRequest(f"invalid object type: {describe_kind(self.applied)}")
        metadata = self.applied.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("managedFields"), list):
            raise BadRequest("metadata.managedFields must be nil")
        try:
            check(self.type, self.applied)
        except TypedError as error:
            raise self._type_error("patch", self.applied, error) from None

    def run(self, force: bool) -> Object:
        try:
            applied_object, managers = self._apply(force)
        except Conflicts as conflicts:
            raise conflict_error(conflicts.found) from None
        except TypedError as error:
            raise self._type_error("live", self.live, error) from None
        merged: Object = copy_json(applied_object)
        metadata = merged.get("metadata") or {}
        if self.manager == last_applied.KUBECTL:
            last_applied.refresh(metadata, self.applied)
        metadata.pop("managedFields", None)
        entries = encode(managers)
        if entries:
            metadata["managedFields"] = entries
        merged["metadata"] = metadata
        return merged

    def _apply(self, force: bool) -> tuple[Object, Managers]:
        managers = reconciled(self.managers or self._initial_managers(), self.versions)
        merged = merge(self.type, self.live, self.applied)
        try:
            return self._claim(merged, managers, force)
        except Conflicts as conflicts:
            if self.manager != last_applied.KUBECTL:
                raise
            remaining = self._conflicts_beyond_last_applied(conflicts.found)
            if remaining:
                raise Conflicts(remaining) from None
            return self._claim(merged, managers, force=True)

    def _initial_managers(self) -> Managers:
        """Return the managers of an object without managedFields: everything belongs to before-first-apply."""
        if not self.live:
            return {}
        moved = move_ownership({}, {}, self.live, self.versions, actor=None, force=True)
        fields = difference(moved.change.changed, STRIPPED)
        manager_id = ManagerId.of(BEFORE_FIRST_APPLY, UPDATE, self.versions.request, self.manager_id.subresource)
        return {manager_id: Owned(fields, self.versions.request, self.now)} if fields else {}

    def _claim(self, merged: Object, managers: Managers, force: bool) -> tuple[Object, Managers]:
        """Return the object without fields that the applier dropped, and the managers after it claimed its fields."""
        last = managers.get(self.manager_id)
        wanted = self.versions.without_reset(owned_paths(self.type, self.applied))
        own = Owned(wanted, self.versions.request, last.time if last else None)
        claimed = {**managers, self.manager_id: own}
        if last is not None and self._removes_fields(last, wanted):
            merged = prune(merged, claimed, last, self.versions)
        after = dict(
            move_ownership(claimed, self.live, merged, self.versions, actor=self.manager_id, force=force).managers
        )
        changed = not equal(self.live, merged)
        fields = difference(wanted, STRIPPED)
        if fields:
            after[self.manager_id] = self._owned(fields, last, changed)
        else:
            after.pop(self.manager_id, None)
        return (merged if changed else self.live), after

    def _removes_fields(self, last: Owned, wanted: FieldSet) -> bool:
        if last.api_version != self.versions.request:
            return True
        return last.fields != difference(wanted, STRIPPED) and bool(difference(last.fields, wanted))

    def _owned(self, fields: FieldSet, last: Owned | None, changed: bool) -> Owned:
        """Return the applier's entry. Its time changes only with the object; a first apply without changes has none."""
        version = self.versions.request
        if changed:
            return Owned(fields, version, self.now)
        if last is not None and last.fields == fields and last.api_version == version:
            return last
        return Owned(fields, version, last.time if last else None)

    def _conflicts_beyond_last_applied(self, conflicts: list[Conflict]) -> list[Conflict]:
        """Return the conflicts that remain for kubectl, which may take over fields that it set by client-side apply:
        those of its last-applied annotation whose values are unchanged."""
        last = last_applied.configuration(self.live, self.versions.request)
        if last is None:
            return conflicts
        try:
            check(self.type, last)
            found = compare(self.type, last, self.live)
            allowed = owned_paths(self.type, last)
        except TypedError:
            return conflicts
        allowed = difference(difference(allowed, found.changed), found.removed)
        return [conflict for conflict in conflicts if not contains(allowed, conflict.path)]

    def _type_error(self, which: str, obj: Object, error: TypedError) -> StatusError:
        """Return kube-apiserver's message with code 400 instead of 500, since bad input is the client's fault."""
        metadata = obj.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        description = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}; {describe_kind(obj)}"
        return BadRequest(f"failed to create typed {which} object ({description}): {error}")


def without_managed_fields(obj: Object) -> Object:
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def describe_kind(obj: Object) -> str:
    """Format a kind as Go does: with a slash even if the group is empty."""
    kind = GroupVersionKind.of(obj)
    return f"{kind.group}/{kind.version}, Kind={kind.kind}"


def conflict_error(conflicts: list[Conflict]) -> ConflictError:
    ordered = sorted(conflicts, key=lambda conflict: conflict.manager_id)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager_id}", "field": path_text(path)}
        for manager_id, path in ordered
    ]
    if len(ordered) == 1:
        message = f"1 conflict: conflict with {ordered[0].manager_id}: {path_text(ordered[0].path)}"
    else:
        lines: list[str] = []
        for manager_id in dict.fromkeys(conflict.manager_id for conflict in ordered):
            lines.append(f"conflicts with {manager_id}:")
            lines += [f"- {path_text(conflict.path)}" for conflict in ordered if conflict.manager_id == manager_id]
        message = f"{len(ordered)} conflicts: " + "\n".join(lines)
    return ConflictError(f"Apply failed with {message}", details={"causes": causes})
