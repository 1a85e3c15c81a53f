"""What built-in kinds have in common beyond all kinds."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from herder.engine.apiserver.builtin import decode
from herder.engine.apiserver.builtin.defaults import default_struct
from herder.engine.apiserver.strategy import Context, Strategy
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import Object
from herder.engine.meta.names import NameCheck


class BuiltinStrategy(Strategy):
    """A kind whose status, where it has one, only the status subresource writes."""

    counts_generations = False
    has_status = False
    status_struct = ""  # Go struct of the status, to start a new object with its empty form

    def __init__(self, *, generations: bool = False, status: str = "", name_check: NameCheck | None = None) -> None:
        self.counts_generations = generations
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
        """A write of the status leaves the rest as it was, so that is not looked at again."""
        return () if context.subresource == "status" else self.problems(obj, context)

    def problems(self, obj: Object, context: Context) -> Iterable[FieldError]:
        """What is wrong with the object by itself."""
        return ()

    def new_status(self) -> Object:
        status = decode.struct_codec(self.status_struct).zero()
        default_struct(self.status_struct, status)
        return status
