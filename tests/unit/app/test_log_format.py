"""Log lines on a terminal: text of users and workload clusters cannot control it."""

from __future__ import annotations

import logging

from herder.app.host.log_format import TerminalFormatter

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n12:00:00 all is well"


def line(message: str, **fields: str) -> str:
    record = logging.LogRecord("herder.x", logging.WARNING, __file__, 1, message, (), None)
    record.fields = fields
    return TerminalFormatter().format(record)


def test_log_lines_escape_control_characters() -> None:
    for output in (line("cluster does not answer", reason=HOSTILE), line(f"tunnel session ended: {HOSTILE}")):
        without_colors = output.replace("\x1b[33m", "").replace("\x1b[0m", "")
        assert without_colors.isprintable(), without_colors
        assert "all is well" in output
