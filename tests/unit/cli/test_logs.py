"""Lines of the log on a terminal: what users and workload clusters wrote does not control it."""

from __future__ import annotations

import logging

from herder.app.log_format import TerminalFormatter

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n12:00:00 all is well"


def line(message: str, **fields: str) -> str:
    record = logging.LogRecord("herder.x", logging.WARNING, __file__, 1, message, (), None)
    record.fields = fields
    return TerminalFormatter().format(record)


def test_text_of_others_does_not_control_the_terminal() -> None:
    for shown in (line("cluster does not answer", reason=HOSTILE), line(f"tunnel session ended: {HOSTILE}")):
        without_colours = shown.replace("\x1b[33m", "").replace("\x1b[0m", "")
        assert without_colours.isprintable(), without_colours
        assert "all is well" in shown
