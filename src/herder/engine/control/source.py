"""Informer over a store in the same process, for controllers that run inside the API server."""

from __future__ import annotations

from collections.abc import Callable

from herder.engine.logs import get_logger
from herder.engine.store import Compacted, Event, Overflow, Store

log = get_logger(__name__)


class StoreInformer:
    """Reports the current objects of a resource, then every change.

    The watch starts before `resync` reads the store, so no change is missed. If the watch overflows or its revision was
    compacted, it starts again with `resync`. Handlers are level-triggered and may see an object twice.
    """

    def __init__(
        self, store: Store, resource: str, *, resync: Callable[[], None], changed: Callable[[Event], None]
    ) -> None:
        """Create an informer for a resource of the store; an empty `resource` means all resources.

        An event on which the handler fails is logged and skipped, so that it does not hide other changes.
        """
        self._store = store
        self._resource = resource
        self._resync = resync
        self._changed = changed

    async def run(self) -> None:
        """Run until cancelled, or until the store closes its watches on shutdown."""
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
            log.error("event handler failed", object=str(event.record.key), exc_info=error)
