"""First process (PID 1) of a container: sets up its namespaces, starts the program, waits for it and cleans up.

In a PID namespace, all remaining processes end with this one. Without one, this process adopts orphans and kills them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import warnings  # noqa: F401 - os.execvpe imports it, when imports no longer work
from collections.abc import Callable
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.root import Root

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
KILL = signal.SIGUSR1  # requests SIGKILL, which cannot be forwarded


def run(config: dict[str, Any], report: int, go: int) -> NoReturn:
    """Run the container. `report` receives a JSON line per step; a byte on `go` starts the program."""
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
    kernel.disable_imports()  # this process stays privileged, and pod volumes may cover its modules
    root.enter()


def _supervise(config: dict[str, Any], report: int) -> int:
    read_end, write_end = os.pipe()  # closed on exec; carries the error if exec fails
    main = os.fork()
    if main == 0:
        os.close(read_end)
        os.close(report)
        _exec_program(config, write_end)
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
        _kill_remaining()
    return 0


def _wait_for(main: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == main:
            return status


def _kill_remaining() -> None:
    """Kill processes that the program left behind."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(field) for field in file.read().split()]


def _exec_program(config: dict[str, Any], failure: int) -> NoReturn:
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
        # Limit private writable memory instead of address space, of which Go and Java reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (limits["memory"], limits["memory"]))
    if limits.get("nice"):
        os.nice(limits["nice"])


def _change_user(user: dict[str, int], isolation: dict[str, bool]) -> None:
    """Switch to the pod's user. `host_uid` owns its files; inside a user namespace the program sees itself as `uid`."""
    if os.geteuid() == 0 and "host_uid" in user:
        kernel.drop_bounding_set()  # while still privileged
        os.setgroups([])
        os.setresgid(user["host_gid"], user["host_gid"], user["host_gid"])
        os.setresuid(user["host_uid"], user["host_uid"], user["host_uid"])
        kernel.keep_own_proc_files()
    if isolation["user"]:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        map_ids((user.get("uid", uid), uid), (user.get("gid", gid), gid))
        _forbid_user_namespaces()
    # UID 0 of a user namespace would regain all capabilities on exec; an empty bounding set prevents it.
    kernel.drop_capabilities()


def _forbid_user_namespaces() -> None:
    """Forbid nested user namespaces, in which the program would have all capabilities again."""
    with contextlib.suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")


def map_ids(uids: tuple[int, int], gids: tuple[int, int]) -> None:
    """Map the only user and group of this user namespace: inside and outside IDs."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uids[0]} {uids[1]} 1"),
        ("gid_map", f"{gids[0]} {gids[1]} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _signal(send: Callable[[int, int], None], main: int, number: int) -> None:
    """Send a signal and ignore exited processes. Forwarded signals go to the program only, SIGKILL to its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(main, number)


def _write_report(report: int, content: dict[str, Any]) -> None:
    os.write(report, json.dumps(content).encode() + b"\n")


def _explain(error: OSError, subject: str = "") -> str:
    subject_name = os.fsdecode(error.filename or subject)
    return f"{subject_name}: {error.strerror}" if subject_name else str(error.strerror or error)
