"""Changes of a store in the same process, for control loops that run beside the API server."""

from __future__ import annotations

from collections.abc import Callable

from herder.engine.logs import get_logger
from herder.engine.store import Compacted, Event, Overflow, Store

log = get_logger(__name__)


class StoreInformer:
    """Reports what a resource holds, then every change of it.

    The watch begins before `resync` reads the store, so that no change falls between the two. A watch that cannot keep
    up, or whose revision was compacted, begins again with `resync`: handlers are level-triggered and may see an
    object twice.
    """

    def __init__(
        self, store: Store, resource: str, *, resync: Callable[[], None], changed: Callable[[Event], None]
    ) -> None:
        """`resource` is that of the store's keys; an empty one follows all resources.

        An object that a handler cannot read is logged and ignored: it must not hide the changes of the others.
        """
        self._store = store
        self._resource = resource
        self._resync = resync
        self._changed = changed

    async def run(self) -> None:
        """Until cancelled, or until the store closes its watches because the server stops."""
        while True:
            watch = self._store.watch(self._resource, since=self._store.revision)
            try:
                self._resync()
                async for batch in watch:
                    for event in batch:
                        self._handle(event)
                return
            except (Compacted, Overflow):
                log.warning("watch fell behind; listing again", resource=self._resource or "all resources")
            finally:
                watch.close()

    def _handle(self, event: Event) -> None:
        try:
            self._changed(event)
        except Exception as error:
            log.error("object ignored", object=str(event.record.key), exc_info=error)
