"""The first process of a container's namespaces: sets them up, starts the program, waits for it, cleans up after it.

With a PID namespace everything left over ends with this process; without one it adopts orphans and ends them itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import warnings  # noqa: F401 - loaded here for os.execvpe, which comes when nothing can be loaded
from collections.abc import Callable
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.root import Root

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
KILL = signal.SIGUSR1  # asks for SIGKILL, which could not be passed on


def run(config: dict[str, Any], report: int, go: int) -> NoReturn:
    """`report` takes one JSON line for each step; a byte on `go` lets the program start."""
    code = 1
    try:
        kernel.die_with_parent(signal.SIGKILL)
        _enter(config)
        _write_report(report, {"ready": True})
        if os.read(go, 1):
            code = _supervise(config, report)
    except OSError as error:
        _write_report(report, {"error": _explain(error)})
    finally:
        os._exit(code)


def _enter(config: dict[str, Any]) -> None:
    isolation = config["isolation"]
    if not isolation["pid"]:
        kernel.adopt_orphans()
    kernel.unshare(kernel.CLONE_NEWNS)
    root = Root(config)
    # This process keeps its rights, and volumes of the pod may lie where its modules were: it loads nothing any more.
    sys.meta_path.clear()
    root.enter()


def _supervise(config: dict[str, Any], report: int) -> int:
    read_end, write_end = os.pipe()  # closes by itself when the program starts; carries the error when it does not
    main = os.fork()
    if main == 0:
        os.close(read_end)
        os.close(report)
        _become(config, write_end)
    os.close(write_end)
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: _signal(os.kill, main, received))
    signal.signal(KILL, lambda _received, _frame: _signal(os.killpg, main, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with os.fdopen(read_end, "rb") as failure:
        problem = failure.read().decode()
    status = _wait_for(main)
    _write_report(report, {"start_error": problem} if problem else {"status": status})
    if not config["isolation"]["pid"]:
        _end_leftovers()
    return 0


def _wait_for(main: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == main:
            return status


def _end_leftovers() -> None:
    """Whatever is still there was started by the program and is ours now."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def _become(config: dict[str, Any], failure: int) -> NoReturn:
    try:
        os.setsid()
        os.dup2(config["stdin"], 0)
        os.dup2(config["stdout"], 1)
        os.dup2(config["stderr"], 2)
        _limit(config["limits"])
        _change_user(config["user"], config["isolation"])
        os.umask(0o022)
        os.chdir(config["working_dir"])
        kernel.no_new_privileges()
        for number in (*_FORWARDED, KILL, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(config["command"][0], config["command"], config["environment"])  # noqa: S606
    except OSError as error:
        os.write(failure, _explain(error, config["command"][0]).encode())
    finally:
        os._exit(127)


def _limit(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "memory" in limits:
        # Private writable memory rather than address space, of which Go and Java reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (limits["memory"], limits["memory"]))
    if limits.get("nice"):
        os.nice(limits["nice"])


def _change_user(user: dict[str, int], isolation: dict[str, bool]) -> None:
    """`host_uid` owns the pod's files; inside a user namespace the program sees itself as `uid`."""
    if os.geteuid() == 0 and "host_uid" in user:
        kernel.drop_bounding_set()  # while this process may
        os.setgroups([])
        os.setresgid(user["host_gid"], user["host_gid"], user["host_gid"])
        os.setresuid(user["host_uid"], user["host_uid"], user["host_uid"])
        kernel.keep_own_proc_files()
    if isolation["user"]:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        map_ids((user.get("uid", uid), uid), (user.get("gid", gid), gid))
        _forbid_user_namespaces()
    # uid 0 of a user namespace would get them all back on exec; an empty bounding set leaves it none.
    kernel.drop_capabilities()


def _forbid_user_namespaces() -> None:
    """In a namespace of its own below this one, the program would hold every capability again."""
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def map_ids(uids: tuple[int, int], gids: tuple[int, int]) -> None:
    """Inside and outside ids of the one user and group that this process's user namespace has."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uids[0]} {uids[1]} 1"),
        ("gid_map", f"{gids[0]} {gids[1]} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _signal(send: Callable[[int, int], None], main: int, number: int) -> None:
    """A polite signal goes to the program alone, as in any container; the last one to its whole group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(main, number)


def _write_report(report: int, what: dict[str, Any]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _explain(error: OSError, subject: str = "") -> str:
    named = os.fsdecode(error.filename or subject)
    return f"{named}: {error.strerror}" if named else str(error.strerror or error)
