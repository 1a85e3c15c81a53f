"""Discovery."""

from __future__ import annotations

from herder.engine.apiserver.resources import Registry
from herder.engine.client.wire import Request, Response


class Discovery:
    def __init__(self, registry: Registry, *, server_address: str = "") -> None:
        self._registry = registry

    def handle(self, request: Request) -> Response | None:
        """The answer for /api, /apis and what lies directly under them, and /version; None for other paths."""
        return None
