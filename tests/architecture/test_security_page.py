"""The security page names existing tests for each class of vulnerabilities."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("| **")]


def test_every_class_names_existing_tests() -> None:
    assert rows()
    for row in rows():
        named = TEST.findall(row)
        assert named, row[:60]
        missing = [f"{path}::{name}" for path, name in named if name not in defined_in(path)]
        assert not missing, f"{row[:60]}: {missing}"


def test_every_reference_to_a_test_is_checked() -> None:
    assert PAGE.read_text().count("::") == sum(len(TEST.findall(row)) for row in rows())


@cache
def defined_in(path: str) -> frozenset[str]:
    file = ROOT / path
    if not file.exists():
        return frozenset()
    found = ast.walk(ast.parse(file.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
