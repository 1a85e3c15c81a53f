"""Base strategy of built-in kinds."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from herder.engine.apiserver.builtin import decode
from herder.engine.apiserver.builtin.defaults import default_struct
from herder.engine.apiserver.registry.strategy import Context, Strategy
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import NameCheck


class BuiltinStrategy(Strategy):
    """A kind whose status, if it has one, is written only through the status subresource."""

    tracks_generation = False
    has_status = False
    status_struct = ""  # Go struct of the status; new objects get its zero value

    def __init__(self, *, generations: bool = False, status: str = "", name_check: NameCheck | None = None) -> None:
        self.tracks_generation = generations
        self.status_struct = status
        self.has_status = bool(status)
        if name_check is not None:
            self.name_check = name_check

    def prepare_create(self, obj: Object, context: Context) -> None:
        if self.status_struct:
            obj["status"] = self.new_status()

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        if self.status_struct and not context.subresource:
            obj["status"] = copy.deepcopy(old.get("status", {}))

    def validate(self, obj: Object, context: Context) -> Iterable[FieldError]:
        """Validate the object. A status update cannot change the rest, which is therefore not validated."""
        return () if context.subresource == "status" else self.problems(obj, context)

    def problems(self, obj: Object, context: Context) -> Iterable[FieldError]:
        """Return the errors of the object by itself."""
        return ()

    def new_status(self) -> Object:
        status = decode.struct_codec(self.status_struct).zero()
        default_struct(self.status_struct, status)
        return status
