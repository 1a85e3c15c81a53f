"""Server-side apply of one configuration to one object."""

from __future__ import annotations

from herder.engine.meta.errors import BadRequest, StatusError
from herder.engine.meta.errors import Conflict as ConflictError
from herder.engine.meta.kinds import GroupVersionKind, Object
from herder.engine.patch import lastapplied
from herder.engine.patch.compare import compare, equal
from herder.engine.patch.fieldset import (
    FieldSet,
    contains,
    difference,
    path_text,
)
from herder.engine.patch.jsonpatch import copy_json
from herder.engine.patch.listitems import TypedError
from herder.engine.patch.managers import APPLY, UPDATE, ManagerId, Managers, Owned, decode, encode
from herder.engine.patch.merge import merge
from herder.engine.patch.ownership import STRIPPED, Conflict, Conflicts, move, reconciled
from herder.engine.patch.paths import owned_paths
from herder.engine.patch.prune import prune
from herder.engine.patch.typed import TypeRef
from herder.engine.patch.validate import check
from herder.engine.patch.versions import Versions

BEFORE_FIRST_APPLY = "before-first-apply"


class Application:
    """An apply request and what it meets."""

    def __init__(
        self, live: Object | None, applied: Object, versions: Versions, manager: str, subresource: str, now: str
    ) -> None:
        metadata = (live or {}).get("metadata") or {}
        self.live = without_managed_fields(live or {})
        self.applied = applied
        self.versions = versions
        self.manager = manager
        self.who = ManagerId.of(manager, APPLY, versions.request, subresource)
        self.now = now
        found = versions.type_at(versions.request)
        if found is None:
            raise StatusError(f"no corresponding type for {describe_kind(applied)}", reason="")
        self.type: TypeRef = found
        self.managers = decode(metadata.get("managedFields") or [], trusted=True)

    def check(self, kind: str) -> None:
        """Refuse a configuration that is not of the request's kind, or says who owns what."""
        sent = GroupVersionKind.of(self.applied)
        if sent.api_version != self.versions.request or (kind and sent.kind != kind):
            raise BadRequest(f"invalid object type: {describe_kind(self.applied)}")
        metadata = self.applied.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("managedFields"), list):
            raise BadRequest("metadata.managedFields must be nil")
        try:
            check(self.type, self.applied)
        except TypedError as error:
            raise self._misfit("patch", self.applied, error) from None

    def run(self, force: bool) -> Object:
        try:
            outcome, managers = self._outcome(force)
        except Conflicts as conflicts:
            raise conflict_error(conflicts.found) from None
        except TypedError as error:
            raise self._misfit("live", self.live, error) from None
        merged: Object = copy_json(outcome)
        metadata = merged.get("metadata") or {}
        if self.manager == lastapplied.KUBECTL:
            lastapplied.refresh(metadata, self.applied)
        metadata.pop("managedFields", None)
        entries = encode(managers)
        if entries:
            metadata["managedFields"] = entries
        merged["metadata"] = metadata
        return merged

    def _outcome(self, force: bool) -> tuple[Object, Managers]:
        managers = reconciled(self.managers or self._owners_so_far(), self.versions)
        merged = merge(self.type, self.live, self.applied)
        try:
            return self._claim(merged, managers, force)
        except Conflicts as conflicts:
            if self.manager != lastapplied.KUBECTL:
                raise
            left = self._beyond_last_applied(conflicts.found)
            if left:
                raise Conflicts(left) from None
            return self._claim(merged, managers, force=True)

    def _owners_so_far(self) -> Managers:
        """An object that nobody kept track of: all it has belongs to a manager of that name."""
        if not self.live:
            return {}
        moved = move({}, {}, self.live, self.versions, actor=None, force=True)
        fields = difference(moved.change.changed, STRIPPED)
        who = ManagerId.of(BEFORE_FIRST_APPLY, UPDATE, self.versions.request, self.who.subresource)
        return {who: Owned(fields, self.versions.request, self.now)} if fields else {}

    def _claim(self, merged: Object, managers: Managers, force: bool) -> tuple[Object, Managers]:
        """The object without what the applier no longer wants, and the managers after it took what it does."""
        last = managers.get(self.who)
        wanted = self.versions.without_reset(owned_paths(self.type, self.applied))
        mine = Owned(wanted, self.versions.request, last.time if last else None)
        claimed = {**managers, self.who: mine}
        if last is not None and self._gives_something_up(last, wanted):
            merged = prune(merged, claimed, last, self.versions)
        after = dict(move(claimed, self.live, merged, self.versions, actor=self.who, force=force).managers)
        changed = not equal(self.live, merged)
        fields = difference(wanted, STRIPPED)
        if fields:
            after[self.who] = self._owned(fields, last, changed)
        else:
            after.pop(self.who, None)
        return (merged if changed else self.live), after

    def _gives_something_up(self, last: Owned, wanted: FieldSet) -> bool:
        if last.api_version != self.versions.request:
            return True
        return last.fields != difference(wanted, STRIPPED) and bool(difference(last.fields, wanted))

    def _owned(self, fields: FieldSet, last: Owned | None, changed: bool) -> Owned:
        """Time moves only with the object; a first apply that changes nothing has none."""
        version = self.versions.request
        if changed:
            return Owned(fields, version, self.now)
        if last is not None and last.fields == fields and last.api_version == version:
            return last
        return Owned(fields, version, last.time if last else None)

    def _beyond_last_applied(self, conflicts: list[Conflict]) -> list[Conflict]:
        """Conflicts that remain for kubectl, which may take what it set itself before it used server-side apply: the
        fields of its last-applied annotation whose values still stand."""
        last = lastapplied.configuration(self.live, self.versions.request)
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

    def _misfit(self, which: str, obj: Object, error: TypedError) -> StatusError:
        """The real server's words; it answers 500 without a reason, but bad input is the caller's fault."""
        metadata = obj.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        named = f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}; {describe_kind(obj)}"
        return BadRequest(f"failed to create typed {which} object ({named}): {error}")


def without_managed_fields(obj: Object) -> Object:
    metadata = obj.get("metadata")
    if not metadata or "managedFields" not in metadata:
        return obj
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "managedFields"}}


def describe_kind(obj: Object) -> str:
    """As Go prints a kind: with a slash also for the group that has no name."""
    kind = GroupVersionKind.of(obj)
    return f"{kind.group}/{kind.version}, Kind={kind.kind}"


def conflict_error(conflicts: list[Conflict]) -> ConflictError:
    ordered = sorted(conflicts, key=lambda conflict: conflict.who)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path_text(path)}
        for who, path in ordered
    ]
    if len(ordered) == 1:
        message = f"1 conflict: conflict with {ordered[0].who}: {path_text(ordered[0].path)}"
    else:
        lines: list[str] = []
        for who in dict.fromkeys(conflict.who for conflict in ordered):
            lines.append(f"conflicts with {who}:")
            lines += [f"- {path_text(conflict.path)}" for conflict in ordered if conflict.who == who]
        message = f"{len(ordered)} conflicts: " + "\n".join(lines)
    return ConflictError(f"Apply failed with {message}", details={"causes": causes})
