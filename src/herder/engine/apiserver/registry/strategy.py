"""Strategy: hooks through which a kind deviates from the rules common to all kinds.

Hooks are pure. They receive decoded objects, which they may modify in place where documented, and a `Context` with the
time, random bytes and a lookup of other objects. Create: decode, `default`, mutating admission, `prepare_create`,
`validate`. Update: decode, `default`, mutating admission, `prepare_update`, `validate` and `validate_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from herder.engine.meta import names
from herder.engine.meta.errors import FieldError
from herder.engine.meta.kinds import GroupResource, Object
from herder.engine.wire import User


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of a hook besides the objects."""

    user: User
    now: datetime
    entropy: Callable[[int], bytes]  # the operating system's random generator, or a seeded one in simulations
    lookup: Callable[[GroupResource, str, str], Object | None]  # resource, namespace, name; storage version
    subresource: str = ""


class Strategy:
    """Default strategy, which fits most kinds; kinds override what differs."""

    name_check: names.NameCheck = staticmethod(names.dns1123_subdomain)
    create_on_update = False  # PUT creates a missing object
    unconditional_update = True  # PUT without resourceVersion is accepted
    tracks_generation = True  # changes outside metadata and status increase metadata.generation
    standard_finalizers = False  # rejects finalizers that are neither standard nor domain-qualified
    repeats_metadata_errors = False  # an update reports metadata errors twice, like some kinds of kube-apiserver
    has_status = True  # create and update drop status; only the status subresource writes it
    returns_deleted_object = False  # delete returns the deleted object instead of a Status
    default_propagation = "Background"  # propagation policy of a delete without one; Orphan for a few old kinds

    def default(self, obj: Object, context: Context) -> None:
        """Apply the defaults of the kind, in place."""

    def prepare_create(self, obj: Object, context: Context) -> None:
        """Set server-owned fields of a new object, in place."""

    def prepare_update(self, obj: Object, old: Object, context: Context) -> None:
        """Set server-owned fields of an updated object, in place."""

    def prepare_delete(self, obj: Object, context: Context) -> None:
        """Modify the stored object in place before its finalizers are checked, on the first delete request."""

    def grace_period(self, obj: Object, requested: int | None) -> int | None:
        """Return the grace period in seconds for kinds that a kubelet terminates (pods); None deletes immediately."""
        return None

    def removable(self, obj: Object) -> bool:
        """Whether a deleted object without metadata.finalizers may be removed. Namespaces also have spec.finalizers."""
        return True

    def validate(self, obj: Object, context: Context) -> Iterable[FieldError]:
        """Return the errors of the object by itself."""
        return ()

    def validate_update(self, obj: Object, old: Object, context: Context) -> Iterable[FieldError]:
        """Return the errors of the change (immutable fields, illegal transitions)."""
        return ()

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        return ()

    def fields(self, obj: Object) -> dict[str, str]:
        """Selectable fields beyond metadata.name and metadata.namespace."""
        return {}


DEFAULT_STRATEGY = Strategy()
