"""Tests against mutants: each mutant in a forked process, up to the first test that fails.

A change inside a function is swapped into the imported module, and only the tests that call the function run. A change
of what a module executes when it is imported, such as a table, needs a process that imports the mutated module.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tools.mutants import Mutant, code_of, forget, install, source_of

KILLED, TIMED_OUT, SURVIVED = "killed", "timed out", "survived"
_IMPORTED = "imported"  # the change is executed by the import of the module
CPU_SECONDS = 10
QUIET = ("-q", "-x", "-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--no-summary")


def judge(
    mutants: Sequence[Mutant], tests_of: Callable[[str], Sequence[Path]], preloaded: Sequence[str] = ()
) -> dict[Mutant, str]:
    """The verdict on each mutant. `tests_of`: test files by module, the one that kills the most first.

    The calling process must have imported neither the modules nor the tests. `preloaded`: modules that import none of
    the mutated ones, so that they need not be imported again.
    """
    for name in preloaded:
        importlib.import_module(name)
    for mutant in mutants:
        assert mutant.module not in sys.modules, f"{mutant.module} is in memory already"
    found: dict[Mutant, str] = {}
    for module in dict.fromkeys(mutant.module for mutant in mutants):
        own, tests = [each for each in mutants if each.module == module], tests_of(module)
        verdicts = json.loads(_fork(partial(_swap_all, own, tests), limit=0) or "[]")
        if len(verdicts) != len(own):
            raise RuntimeError(f"the tests of {module} fail without a mutant")
        found |= dict(zip(own, verdicts, strict=True))
    return found


def _fork(work: Callable[[], str], limit: int = CPU_SECONDS) -> str | None:
    """The result of the work in a forked process; None if it was ended by its CPU limit."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run_child(work, writing, limit)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        output = stream.read()
    _, status = os.waitpid(child, 0)
    return (
        None if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else output.decode()
    )


def _run_child(work: Callable[[], str], writing: int, limit: int) -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    output = b""
    try:
        output = work().encode()
    finally:
        while output:
            output = output[os.write(writing, output) :]
        os._exit(0)


def _verdict(output: str | None) -> str:
    return TIMED_OUT if output is None else output or KILLED  # nothing: an error that ends the process


# --- one module -------------------------------------------------------------------------------------------------------


def _swap_all(mutants: Sequence[Mutant], tests: Sequence[Path]) -> str:
    swapping = _Swapping(mutants, tests)
    pytest.main([*QUIET, *map(str, tests)], plugins=[swapping])
    return json.dumps(swapping.verdicts)


class _Swapping:
    """Instead of running the tests once, run them against each mutant."""

    def __init__(self, mutants: Sequence[Mutant], tests: Sequence[Path]) -> None:
        self._mutants, self._tests = mutants, tests
        self._preloaded = frozenset(sys.modules)
        self.verdicts: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        module = self._mutants[0].module
        swap = Swap(module)
        reached = {item: _codes_called(item, source_of(module)) for item in session.items}
        passed = all(codes is not None for codes in reached.values())
        if passed and self._judge_import(None, session) == SURVIVED:
            gc.collect()
            gc.freeze()
            for mutant in self._mutants:
                verdict = self._judge(mutant, swap, reached)
                self.verdicts.append(self._judge_import(mutant, session) if verdict == _IMPORTED else verdict)
        return True

    def _judge_import(self, mutant: Mutant | None, session: pytest.Session) -> str:
        """Import the mutated module and the tests again. Without a mutant, they must pass."""

        def run() -> str:
            own = [name for name in sys.modules if name.partition(".")[0] in ("herder", "tests")]
            forget(name for name in own if name not in self._preloaded)
            if mutant is not None:
                install(mutant)
            return SURVIVED if all(self._passes_again(session, path) for path in self._tests) else KILLED

        return _verdict(_fork(run))

    def _passes_again(self, session: pytest.Session, path: Path) -> bool:
        items = session.perform_collect([str(path)])
        return bool(items) and not session.testsfailed and all(_passes(item) for item in items)

    def _judge(self, mutant: Mutant, swap: Swap, reached: Mapping[pytest.Item, set[_Place] | None]) -> str:
        def run() -> str:
            changed = swap.apply(mutant)
            if changed is None:
                return _IMPORTED
            items = [item for item, codes in reached.items() if changed in (codes or ())]
            if not items:
                return _IMPORTED  # perhaps the import calls it
            return SURVIVED if all(_passes(item) for item in items) else KILLED

        return _verdict(_fork(run))


class Swap:
    """The functions of an imported module, whose code can be replaced."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._frame = list(_walk(code_of(module)))
        objects = gc.get_objects()
        self._functions = [each for each in objects if type(each) is FunctionType and each.__module__ == module]

    def apply(self, mutant: Mutant) -> _Place | None:
        """Swap the mutant in, and return which function it changes; None if the import executes the change."""
        frame = list(_walk(code_of(self._module, mutant)))
        if len(frame) != len(self._frame):
            return None
        changed = [(old, new) for old, new in zip(self._frame, frame, strict=True) if _own(old) != _own(new)]
        if len(changed) != 1 or not _is_function(changed[0][0]):
            return None
        old, new = changed[0]
        functions = [each for each in self._functions if _place(each.__code__) == _place(old)]
        if len(functions) != 1 or any(len(each.__closure__ or ()) != len(new.co_freevars) for each in functions):
            return None
        for each in functions:
            each.__code__ = new
        return _place(old)


_Place = tuple[str, int]


def _place(code: CodeType) -> _Place:
    """Where the function is defined; two lambdas of one line are not distinguished."""
    return code.co_qualname, code.co_firstlineno


def _walk(code: CodeType) -> Iterator[CodeType]:
    """The code that the import executes, and the functions that it defines; not what is nested in those."""
    yield code
    if not _is_function(code):
        for each in code.co_consts:
            if isinstance(each, CodeType):
                yield from _walk(each)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 1)  # CO_OPTIMIZED: modules and classes do not have it


def _own(code: CodeType) -> Any:
    """What identifies the code: for a function all of it, otherwise all but the functions that it defines."""
    if _is_function(code):
        return code
    constants = [None if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts]
    return code.co_code, constants, code.co_names


def _codes_called(item: pytest.Item, source: Path) -> set[_Place] | None:
    """The functions of this file that the test calls; None if it fails."""
    called: set[_Place] = set()
    path = str(source)

    def record(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == path:
            called.add(_place(frame.f_code))

    sys.setprofile(record)
    try:
        passed = _passes(item)
    finally:
        sys.setprofile(None)
    return called if passed else None


def _passes(item: pytest.Item) -> bool:
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))
