"""Validation against the field table: rejects values that would be stored and ignored."""

from __future__ import annotations

from collections.abc import Iterator

from herder.api.rke.fields.table import distribution_of, refused_values
from herder.engine.meta.errors import FieldError, forbidden_field
from herder.engine.meta.kinds import Object


def refuse_unsupported(obj: Object, old: Object | None) -> Iterator[FieldError]:
    """Reject new values only: a Cluster that has one already stays editable, and its status reports the field."""
    comparable = old is not None and distribution_of(old) == distribution_of(obj)
    stored = {each.identity: each.value for each in refused_values(old)} if old is not None and comparable else {}
    for each in refused_values(obj):
        if each.identity not in stored or stored[each.identity] != each.value:
            yield forbidden_field(each.field, each.reason)
