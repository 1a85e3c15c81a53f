"""Decisions are pure: what the design bans from reconcilers and guards is nowhere in their modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "herder"
BANNED_MODULES = {"time", "random", "os", "socket", "asyncio", "subprocess", "secrets", "threading", "aiohttp", "uuid"}
BANNED_CALLS = {"now", "utcnow", "today", "open", "getenv", "urandom"}
PURE = sorted([*(SOURCE / "controllers").rglob("*.py"), *(SOURCE / "api").rglob("*.py")])
PURE_ENGINE = sorted(path for part in ("meta", "schema", "patch") for path in (SOURCE / "engine" / part).rglob("*.py"))


def impurities(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in BANNED_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in BANNED_MODULES:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in BANNED_CALLS and not (isinstance(node.func, ast.Attribute) and _is_self(node.func.value)):
                found.append(f"{name}()")
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.parametrize("path", PURE + PURE_ENGINE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_modules_do_no_io_and_read_no_clock(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    ["import time", "from os import environ", "import asyncio.subprocess", "x = datetime.now()", "open('f')"],
)
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    assert impurities(source)
