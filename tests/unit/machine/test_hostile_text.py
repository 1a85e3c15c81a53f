"""Text from machines is printed without control characters."""

from __future__ import annotations

import io

import pytest

from herder.machine.errors import MachineError, Unreachable
from herder.machine.progress import Screen

ESCAPE = "\x1b]0;title\x07\x1b[2J\r\x9b31m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [MachineError, Unreachable])
def test_errors_contain_no_control_characters(kind: type[MachineError]) -> None:
    error = kind(f"the copy failed: {ESCAPE}no such file\n", f"see {ESCAPE}")
    assert not {"\x1b", "\x07", "\r", "\x9b"} & set(str(error) + error.message + error.advice)


@pytest.mark.parametrize("line", [f"{ESCAPE}done", f"Installing{ESCAPE}: 50% {ESCAPE}"])
def test_script_output_cannot_control_the_terminal(line: str) -> None:
    terminal = Terminal()
    Screen(terminal).show(line)
    printed = terminal.getvalue().replace("\r\x1b[K", "", 1)  # the progress bar itself
    assert not {"\x1b", "\x07", "\r", "\x9b"} & set(printed)
