"""Decisions are pure: reconcilers, guards and their modules use no I/O, clock, environment or random source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "herder"
BANNED_MODULES = {
    "aiohttp", "asyncio", "http", "importlib", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil",
    "socket", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
}  # fmt: skip
BANNED_CALLS = {
    "getenv", "glob", "iterdir", "now", "open", "read_bytes", "read_text", "today", "urandom", "urlopen", "utcnow",
    "write_bytes", "write_text",
}  # fmt: skip
BANNED_ATTRIBUTES = {"environ"}
ALLOWED = {"pathlib.PurePath"}
PURE = sorted([*(SOURCE / "controllers").rglob("*.py"), *(SOURCE / "api").rglob("*.py")])
PURE_ENGINE = sorted(path for part in ("meta", "schema", "patch") for path in (SOURCE / "engine" / part).rglob("*.py"))


def impurities(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if _is_banned(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            found += [name for alias in node.names if _is_banned(name := f"{node.module}.{alias.name}")]
        elif isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            found.append(f".{node.attr}")
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in BANNED_CALLS and not (isinstance(node.func, ast.Attribute) and _is_self(node.func.value)):
                found.append(f"{name}()")
    return found


def _is_banned(module: str) -> bool:
    parts = module.split(".")
    return module not in ALLOWED and any(
        ".".join(parts[:length]) in BANNED_MODULES for length in range(1, len(parts) + 1)
    )


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.parametrize("path", PURE + PURE_ENGINE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_modules_do_no_io_and_read_no_clock(path: Path) -> None:
    assert impurities(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import environ",
        "import asyncio.subprocess",
        "x = datetime.now()",
        "open('f')",
        "from pathlib import Path",
        "x = files('package').joinpath('f').read_bytes()",
        "from urllib import request",
        "import urllib.request",
        "x = context.environ['HOME']",
        "from importlib import resources",
    ],
)
def test_the_check_finds_impure_code(source: str) -> None:
    assert impurities(source)


def test_the_check_accepts_pure_code() -> None:
    assert impurities("from urllib.parse import urlsplit\nx = self.open()") == []


def test_controllers_get_a_copy_of_the_environment() -> None:
    """A reconciler with access to `os.environ` could decide by values that change meanwhile."""
    tree = ast.parse((SOURCE / "app" / "manager.py").read_text())
    builders = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "dynamic_controllers"
    ]
    passed = [ast.unparse(each) for each in ast.walk(builders[0]) if isinstance(each, ast.Call)]
    assert "dict(os.environ)" in passed
