"""Structured logging over the standard library: a message and key-value fields.

    log = get_logger(__name__)
    log.warning("decision refused by guard", controller="machine", key="default/a")

Records go through `logging`, so an embedding program sees them like any other; the command line prints JSON lines.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, NamedTuple


class LogContext(NamedTuple):
    """The reconcile during which a log line is written."""

    controller: str
    key: object
    reconcile_id: int

    def fields(self) -> dict[str, Any]:
        return {"controller": self.controller, "object": str(self.key), "reconcile_id": f"{self.reconcile_id:08x}"}


_CONTEXT: ContextVar[LogContext | None] = ContextVar("herder_log_context", default=None)


def set_log_context(context: LogContext) -> None:
    """Add these fields to every later log line of this task, and of the tasks that it starts."""
    _CONTEXT.set(context)


class Logger:
    """Logger with key-value fields."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the current exception."""
        self._log(logging.ERROR, event, {"exc_info": True, **fields})

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            failure = fields.pop("exc_info", None)
            context = _CONTEXT.get()
            if context is not None:
                fields = {**context.fields(), **fields}
            self._logger.log(level, event, exc_info=failure, extra={"fields": fields})


def get_logger(name: str) -> Logger:
    return Logger(name)
