"""Keeps the registry and the status of definitions right while definitions come, change and go."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from herder.engine.apiserver.resources import Registry

if TYPE_CHECKING:
    from herder.engine.store import Store


class CrdController:
    def __init__(self, store: Store, registry: Registry, *, clock: Callable[[], datetime]) -> None: ...

    def load(self) -> None:
        """Serve what the store's established definitions say. Called once, before the first request."""

    async def run(self) -> None:
        """Follow the definitions until cancelled."""
