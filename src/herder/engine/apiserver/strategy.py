"""What a kind may do beyond the rules that all kinds share.

Hooks are pure: they get decoded objects they may change in place where said, and a `Context` that hands them the
time, random bytes and a look at other objects. Order of a create: decode, `default`, mutating admission,
`prepare_create`, `validate`. Of an update: decode, `default`, mutating admission, `prepare_update`,
`validate` + `validate_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from herder.engine.client.wire import User
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import GroupResource, Object


@dataclass(frozen=True, slots=True)
class Context:
    """What a hook may know of the world."""

    user: User
    now: datetime
    entropy: Callable[[int], bytes]  # the operating system's generator, or a seeded one in simulation
    lookup: Callable[[GroupResource, str, str], Object | None]  # resource, namespace, name; storage version
    subresource: str = ""


class Strategy:
    """Defaults that fit most kinds; a kind overrides what differs."""

    name_check: names.NameCheck = staticmethod(names.dns1123_subdomain)
    create_on_update = False  # PUT to a missing name creates it
    unconditional_update = True  # PUT without resourceVersion is accepted
    counts_generations = True  # metadata.generation moves when anything outside metadata and status changes
    standard_finalizers = False  # refuses finalizers that are neither Kubernetes' own nor say whose they are
    repeats_metadata_errors = False  # an update's complaints about metadata repeat those of a create
    has_status = True  # create and update drop status; only the subresource writes it
    answers_deleted_object = False  # a delete answers the last state instead of a Status
    default_propagation = "Background"  # Orphan for a few old kinds: what a delete does that names no policy

    def default(self, obj: Object, context: Context) -> None:
        """Fill in what the kind defaults, in place."""

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Settle server-owned fields of a new object, in place."""

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        """Settle server-owned fields of a changed object, in place."""

    def prepare_delete(self, obj: Object, context: Context) -> None:
        """Change the stored object in place before its finalizers are looked at, on the first request to delete it."""

    def grace_period(self, obj: Object, requested: int | None) -> int | None:
        """Seconds the object may take to go, for kinds that someone else finishes (pods); None deletes at once."""
        return None

    def removable(self, obj: Object) -> bool:
        """Whether a deleted object without metadata.finalizers may go; namespaces have finalizers of their own."""
        return True

    def validate(self, obj: Object, context: Context) -> Iterable[FieldError]:
        """What is wrong with the object by itself."""
        return ()

    def validate_update(self, obj: Object, old: Object, context: Context) -> Iterable[FieldError]:
        """What is wrong with the change (immutable fields, illegal transitions)."""
        return ()

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return ()

    def fields(self, obj: Object) -> dict[str, str]:
        """Selectable fields beyond metadata.name and metadata.namespace."""
        return {}


PLAIN = Strategy()
