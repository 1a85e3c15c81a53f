"""Boot one machine and exit: a separate program, because it changes namespaces and user.

Reads the configuration from stdin and prints the result. Three processes take part: this one stays on the host and
records the PID 1; `_build` leaves the host step by step; PID 1 waits for permission to run, so that it never runs
unrecorded, and exits if this program does.
"""

from __future__ import annotations

import binascii
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.engine.runner.shim.init import map_ids
from herder.machine.host.process import root, signals
from herder.machine.host.process.kernel import CLONE_NEWIPC, CLONE_NEWUTS, set_hostname
from herder.machine.host.process.tree import INIT, LOCAL, Tree


def main() -> None:
    config = json.loads(sys.stdin.buffer.read())
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != config["parent"]:
        return  # the daemon died; the next one decides again
    try:
        answer = _boot(config)
    except OSError as error:
        answer = {"error": _explain(error)}
    print(json.dumps(answer), flush=True)


def _boot(config: dict[str, Any]) -> dict[str, Any]:
    os.chdir(config["directory"])
    _make_tree(config)
    report, go = os.pipe(), os.pipe()
    builder = os.fork()
    if builder == 0:
        os.close(report[0])
        os.close(go[1])
        _build(config, report[1], go[0])
    os.close(report[1])
    os.close(go[0])
    with os.fdopen(report[0], "rb") as lines:
        reported = [json.loads(line) for line in lines]
    os.waitpid(builder, 0)
    found = {key: value for line in reported for key, value in line.items()}
    if "error" in found or not found.get("ready"):
        return {"error": found.get("error", "the first process did not start")}
    if config.get("probe"):
        return {}
    running = {"pid": found["pid"], "started": started(found["pid"]), "boot": boot_id()}
    _keep("running", running)
    os.write(go[1], b"g")
    return running


def _make_tree(config: dict[str, Any]) -> None:
    if os.path.isdir("root"):
        return  # created completely before, and the machine's own since
    if config.get("seed") is None:
        raise FileNotFoundError(2, "has no files yet: its creation is not finished", config["directory"])
    for left in ("root.new", LOCAL):
        if os.path.isdir(left):
            _delete(left)
    seed = {**config["seed"], "script": binascii.a2b_base64(config["seed"]["script"])}
    seed["init"] = config["init"].encode()
    Tree(config["directory"], seed, config["owner"]).make()
    os.rename("root.new", "root")


def _delete(left: str) -> None:
    """Delete the remains of an interrupted attempt; rare, so the module is imported on use."""
    import shutil

    shutil.rmtree(left)


def _build(config: dict[str, Any], report: int, go: int) -> NoReturn:
    try:
        console = os.open("console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _leave_host(config)
        first = os.fork()
        if first == 0:
            _become_first(config, console, report, go)
        _write_report(report, {"pid": first})
    except OSError as error:
        _write_report(report, {"error": _explain(error)})
    finally:
        os._exit(0)


def _leave_host(config: dict[str, Any]) -> None:
    """Become an unprivileged user of the host, who can neither undo nor remount what was mounted.

    The host's root mounts first, because the other user may not be able to traverse the directories.
    """
    kernel.disable_imports()  # the files of a machine that boots again are its own
    owner = config["owner"]
    if owner is None:
        _unshare_as_root(0)
    else:
        kernel.unshare(kernel.CLONE_NEWNS)
    root.enter(config["directory"], config["hidden"], owner)
    if not config["user_namespace"]:
        kernel.unshare(kernel.CLONE_NEWPID)
        return
    if owner is not None:
        become_owner(owner)
    _unshare_as_root(kernel.CLONE_NEWPID)


def _unshare_as_root(namespaces: int) -> None:
    """Create a user namespace in which this process is root, and a mount namespace whose mounts it cannot undo."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | namespaces)
    map_ids((0, uid), (0, gid))


def become_owner(owner: list[int]) -> None:
    os.setgroups([])
    os.setresgid(owner[1], owner[1], owner[1])
    os.setresuid(owner[0], owner[0], owner[0])
    kernel.keep_own_proc_files()


def _become_first(config: dict[str, Any], console: int, report: int, go: int) -> NoReturn:
    try:
        os.setsid()
        _move_in(config)
        _limit(config["memory"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(console, 1)
        os.dup2(console, 2)
        os.umask(0o022)
        os.chdir("/")
        _write_report(report, {"ready": True})
        os.close(report)
        if os.read(go, 1):
            signals.as_they_are()
            os.execve("/bin/sh", ["/bin/sh", f"/{INIT}"], config["environment"])  # noqa: S606
    except OSError as error:
        _write_report(report, {"error": _explain(error)})
    finally:
        os._exit(1)


def _move_in(config: dict[str, Any]) -> None:
    """The last steps, which only a process of the machine can do."""
    own = CLONE_NEWUTS | CLONE_NEWIPC
    if config["user_namespace"]:
        root.populate(None)
        _unshare_as_root(own)  # again: the machine's own /proc hides the host's
        set_hostname(config["hostname"])
        return
    root.populate(config["owner"])
    kernel.unshare(own)
    set_hostname(config["hostname"])
    become_owner(config["owner"])


def _limit(megabytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if megabytes:
        # RLIMIT_DATA instead of address space, of which Go and Java reserve far more than they use.
        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))


def started(pid: int) -> int:
    """Return the start time in clock ticks, to detect PID reuse; 0 if there is no process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _write_report(report: int, what: dict[str, Any]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def _keep(name: str, content: dict[str, Any]) -> None:
    """Write atomically; no fsync, because a power failure ends the machine too."""
    with open(f"{name}.new", "w") as file:
        json.dump(content, file)
    os.replace(f"{name}.new", name)


def _explain(error: OSError) -> str:
    return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else str(error.strerror or error)


if __name__ == "__main__":
    main()
