"""Command lines of the helper programs next to this module, with minimal interpreter startup."""

from __future__ import annotations

import sys
from pathlib import Path

import herder

_SOURCES = str(Path(herder.__file__).parents[1])
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {module} import main; main()"


def own_program(name: str, *arguments: str) -> list[str]:
    return module_program(f"herder.machine.host.process.{name}", *arguments)


def module_program(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-B", "-c", _START.format(module=module), _SOURCES, *arguments]
