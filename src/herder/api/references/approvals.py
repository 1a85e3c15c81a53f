"""Record of approved references: an annotation that admission writes and users cannot.

An object without the annotation was stored before references were checked, was written by the manager, or has no
references; its references count as approved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from herder.api.references.catalogue import FieldReference, Target
from herder.engine.memo import DigestMemo
from herder.engine.meta.kinds import Object

APPROVED = "herder.io/approved-references"
REVIEW = "herder.io/review-references"
"""Users set this annotation to a new value to have references reviewed again, such as after a target was recreated."""


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reference that its author was allowed to write. Without a UID it applies to any object of that name."""

    path: str
    resource: str
    name: str
    group: str = ""
    namespace: str = ""
    uid: str = ""
    author: str = ""

    @property
    def key(self) -> tuple[str, Target]:
        return self.path, Target(self.group, self.resource, self.namespace, self.name)


class _Record:
    """The approvals of an object, by what they are looked up by. A Cluster may have some thousands."""

    def __init__(self, approvals: tuple[Approval, ...]) -> None:
        self.approvals = approvals
        self.by_key: dict[tuple[str, Target], Approval] = {}
        self.by_target: dict[Target, list[Approval]] = {}
        self.by_path: dict[str, list[Approval]] = {}
        for each in approvals:
            path, target = key = each.key
            self.by_key.setdefault(key, each)
            self.by_target.setdefault(target, []).append(each)
            self.by_path.setdefault(path, []).append(each)


_NOTHING = _Record(())
_records: DigestMemo[_Record] = DigestMemo(16)
"""By their text, which is as long as that of some objects. A reconcile looks up many references of few objects."""

_decode = msgspec.json.Decoder(tuple[Approval, ...]).decode
_encode = msgspec.json.Encoder().encode


def approval(reference: FieldReference, uid: str, author: str) -> Approval:
    target = reference.target
    return Approval(reference.path, target.resource, target.name, target.group, target.namespace, uid, author)


def recorded(obj: Object | None) -> tuple[Approval, ...] | None:
    """Return the approvals of an object; None if nothing is recorded. An unreadable record approves nothing."""
    record = _record(obj)
    return record.approvals if record is not None else None


def _record(obj: Object | None) -> _Record | None:
    text = _annotation(obj, APPROVED)
    return None if text is None else _records.get(text, lambda: _read(text))


def _read(text: str) -> _Record:
    try:
        return _Record(_decode(text))
    except (msgspec.DecodeError, msgspec.ValidationError):
        return _NOTHING


def with_record(obj: Object, approvals: Sequence[Approval] | None) -> Object:
    """Return the object with this record; None removes it."""
    text = _encode(sorted(approvals, key=_order)).decode() if approvals is not None else None
    if text == _annotation(obj, APPROVED):
        return obj
    meta = obj.get("metadata") or {}
    others = {name: value for name, value in (meta.get("annotations") or {}).items() if name != APPROVED}
    marks = others if text is None else {**others, APPROVED: text}
    kept = {name: value for name, value in meta.items() if name != "annotations"}
    return {**obj, "metadata": {**kept, "annotations": marks} if marks else kept}


def _order(each: Approval) -> tuple[str, Target]:
    return each.key


def _annotation(obj: Object | None, name: str) -> str | None:
    marks = ((obj or {}).get("metadata") or {}).get("annotations")
    value = marks.get(name) if isinstance(marks, dict) else None
    return value if isinstance(value, str) else None


# --- admission ------------------------------------------------------------------------------------------------------


class ReferenceChange(NamedTuple):
    """What a write changes in an object's references."""

    kept: tuple[Approval, ...]  # approvals of unchanged references
    new: tuple[FieldReference, ...]  # references to review


def compare(
    obj: Object, old: Object | None, now: Sequence[FieldReference], before: Sequence[FieldReference]
) -> ReferenceChange:
    """Compare with the stored object; the record in the user's object is ignored."""
    if old is not None and _annotation(obj, REVIEW) != _annotation(old, REVIEW):
        return ReferenceChange((), tuple(now))
    contexts = {(each.key, each.context) for each in now}
    known = {each.key for each in before if (each.key, each.context) in contexts}
    stored = recorded(old)
    if stored is None:
        stored = tuple(approval(each, "", "") for each in before)
    wanted = {each.key for each in now}
    kept = {each.key: each for each in stored if each.key in wanted and each.key in known}
    return ReferenceChange(
        tuple(kept.values()), tuple({each.key: each for each in now if each.key not in known}.values())
    )


def with_target_uids(obj: Object, uid_of: Callable[[Target], str]) -> tuple[Approval, ...] | None:
    """Return the record with UIDs of targets that appeared since it was written; None if nothing changes.

    From then on, an object that replaces the target is rejected.
    """
    before = recorded(obj)
    if before is None or all(each.uid for each in before):
        return None
    after = tuple(each if each.uid else msgspec.structs.replace(each, uid=uid_of(each.key[1])) for each in before)
    return after if after != before else None


# --- resolution -----------------------------------------------------------------------------------------------------


def problem(obj: Object, path: str, target: Target, uid: str) -> str:
    """Return why the reference must not be resolved; "" if it may be. `uid` is that of the object found now."""
    record = _record(obj)
    return _verdict(record.by_key.get((path, target)), target, uid) if record is not None else ""


def problem_with(obj: Object, target: Target, uid: str) -> str:
    """Return the same for a target that several fields reference: one approved reference suffices."""
    record = _record(obj)
    if record is None:
        return ""
    verdicts = [_verdict(each, target, uid) for each in record.by_target.get(target, ())]
    return "" if "" in verdicts else next(iter(verdicts), _verdict(None, target, uid))


def recreated(obj: Object, path: str, target: Target, uid: str) -> str:
    """The same for a reference that the manager writes too, without a record: only one that a user wrote is bound."""
    record = _record(obj)
    found = record.by_key.get((path, target)) if record is not None else None
    return _verdict(found, target, uid) if found is not None else ""


def _verdict(found: Approval | None, target: Target, uid: str) -> str:
    if found is None:
        return f"the reference to {target} is not approved; {_REMEDY}"
    if found.uid and uid and found.uid != uid:
        return f"{target} was recreated since the reference to it was approved; {_REMEDY}"
    return ""


_REMEDY = f"set annotation {REVIEW} to a new value as a user who may use it"


def derived_record(
    source: Object, renamed: Callable[[Approval], str | None], further: Iterable[Approval] = ()
) -> dict[str, str]:
    """Return the annotation for an object that the manager derives from `source`, bound to the same UIDs.

    `renamed` returns the path in the derived object; None if the reference is not in it.
    """
    approvals = recorded(source)
    if approvals is None:
        return {}
    paths = ((renamed(each), each) for each in approvals)
    return {APPROVED: _text((*_moved(paths), *further))}


def derived_reference(source: Object, path: str, renamed: str, further: Iterable[Approval] = ()) -> dict[str, str]:
    """Return the same for the references in one field of `source`, which is called `renamed` in the derived object."""
    record = _record(source)
    if record is None:
        return {}
    return {APPROVED: _text((*_moved((renamed, each) for each in record.by_path.get(path, ())), *further))}


def _moved(paths: Iterable[tuple[str | None, Approval]]) -> Iterator[Approval]:
    return (msgspec.structs.replace(each, path=path) for path, each in paths if path)


def without_record(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Annotations that a user gives for objects that the manager creates, such as those of a template. Controllers
    trust the record in what the manager writes, so none of a user gets there."""
    return {name: value for name, value in (annotations or {}).items() if name != APPROVED}


def _text(approvals: Iterable[Approval]) -> str:
    return _encode(sorted(approvals, key=_order)).decode()
