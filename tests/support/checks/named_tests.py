"""Tests that pages of the documentation name as PATH::FUNCTION."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def missing_tests(text: str) -> list[str]:
    """Named tests that do not exist."""
    return [f"{path}::{name}" for path, name in TEST.findall(text) if name not in _defined_in(path)]


@cache
def _defined_in(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.exists():
        return frozenset()
    found = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
