"""Log formatters: one line per event, readable on a terminal and JSON otherwise."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

from herder.engine.meta.printable import printable

COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "DEBUG": "\x1b[2m"}


def configure(*, level: str = "info") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TerminalFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        import msgspec

        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name.removeprefix("herder."),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TerminalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        colour = COLOURS.get(record.levelname, "")
        # Messages and fields contain text of users and of workload clusters.
        message, fields = _one_line(record.getMessage()), _one_line(fields)
        line = f"{at} {colour}{message}{chr(27) + '[0m' if colour else ''}  {fields}".rstrip()
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + printable(self.formatException(record.exc_info))
        return line


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ")
