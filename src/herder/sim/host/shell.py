"""Interpreter of instructions: runs the argument vector of a command on a simulated machine.

It knows a closed set of programs and scripts. Everything else fails with exit code 127, as on a machine without it.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime

from herder.agent.core.events import Finished
from herder.controllers.planner.distributions import certificate_report
from herder.controllers.planner.distributions.rancher.snapshots import HASH_SCRIPT
from herder.embedded.stale_nodes import RETRY_SECONDS, TRIES, delete_stale_nodes
from herder.sim.host import configuration, snapshots
from herder.sim.host.certificates import certificates_at
from herder.sim.host.command import Command, Script
from herder.sim.host.disk import RESTORED
from herder.sim.host.managed_keys import write_manifest
from herder.sim.host.service import NOTIFIES, UNITS
from herder.sim.k3s import program as k3s
from herder.sim.kubeadm import program as kubeadm

ATTEMPT = "CATTLE_AGENT_ATTEMPT_NUMBER"
_BLOCKS = ("k3s", "kubeadm")  # runtimes whose installer waits for the service
_DIRECTORIES = ("", "/bin", "/usr/bin", "/usr/local/bin", "/opt/rke2/bin", "/sbin", "/usr/sbin")
_RUN_ONCE = re.compile(r".*/idempotence/idempotent\.sh")
_CAPTURE_ADDRESS = re.compile(
    r"curl -f --retry 100 --retry-delay 5 --cacert \S+ https://localhost:\d+/db/info \| grep 'clientURLs'"
)
_ETCD_NAME = re.compile(r"cat (?P<directory>\S+)/name")


async def run(command: Command) -> Finished:
    directory, name = posixpath.split(command.program)
    known = directory in _DIRECTORIES or directory == f"{command.node.disk.layout.data}/bin"
    handler = _PROGRAMS.get(name) if known else None
    return await handler(command) if handler is not None else command.not_found()


def execute(command: Command, program: str, *arguments: str) -> Awaitable[Finished]:
    """Run another program with the same environment, as scripts do."""
    return run(Command(command.node, program, arguments, command.environment, command.image))


# --- sh and env -------------------------------------------------------------------------------------------------------


async def _sh(command: Command) -> Finished:
    arguments = list(command.arguments)
    while arguments and arguments[0] in ("-x", "-e", "-u", "-eu", "-ex"):
        arguments.pop(0)
    if not arguments:
        return command.not_found("script")
    if arguments[0] != "-c":
        return await _script_file(command, arguments[0], arguments[1:])
    if len(arguments) < 2:
        return Finished(2, stderr=b"sh: 0: -c requires an argument\n")
    text, positional = arguments[1], arguments[3:]
    if text == "run.sh":
        return await _install(command)
    if text == certificate_report.SCRIPT:
        return _report_certificates(command, *positional)
    if text == HASH_SCRIPT:
        return _report_snapshots(command, *positional)
    script = command.node.context.scripts.get(text)
    if script is not None:
        return await script(Command(command.node, "sh", positional, command.environment, command.image))
    return _address_script(command, text)


async def _script_file(command: Command, path: str, arguments: Sequence[str]) -> Finished:
    content = command.node.disk.files.get(path)
    if not isinstance(content, bytes):
        return Finished(127, stderr=f"sh: 0: cannot open {path}: No such file or directory\n".encode())
    if _RUN_ONCE.fullmatch(path):
        return await _run_once(command, arguments)
    script = command.node.context.scripts.get(content.decode(errors="replace"))
    if script is None:
        return command.not_found(path)
    return await script(Command(command.node, path, arguments, command.environment, command.image))


async def _run_once(command: Command, arguments: Sequence[str]) -> Finished:
    """Run a command once for each attempt at a value, as the wrapper in plans does."""
    if len(arguments) < 5:
        return Finished(2, stderr=b"idempotent.sh: parameter not set\n")
    key, value, total, program, directory, *rest = arguments
    record = f"{directory}/idempotence/{key}/{total}/{value}/last-attempt"
    attempt = command.environment.get(ATTEMPT, "0")
    if command.node.disk.files.get(record) == f"{attempt}\n".encode():
        return Finished(0, f"{key} has been done for {value} at attempt {attempt}\n".encode())
    command.node.disk.files[record] = f"{attempt}\n".encode()
    return await execute(command, program, *rest)


def _address_script(command: Command, text: str) -> Finished:
    """The periodic instructions of etcd-only machines."""
    node = command.node
    if _CAPTURE_ADDRESS.fullmatch(text):
        if node.running and node.cluster.has_quorum:
            return Finished(0, node.cluster.members_as_told().encode())
        return Finished(1, stderr=b"curl: (7) Failed to connect to localhost: connection refused\n")
    found = _ETCD_NAME.fullmatch(text)
    if found is not None and found["directory"] == node.disk.layout.etcd:
        data = node.disk.etcd
        return Finished(0, f"{data.member}\n".encode()) if data else Finished(1, stderr=b"No such file or directory\n")
    return command.not_found(text.split(maxsplit=1)[0] if text.strip() else "script")


def _report_certificates(command: Command, limit: str, last: str, *patterns: str) -> Finished:
    lines = [
        f"certificate {each.serial:016X} {datetime.fromtimestamp(each.expires, UTC):%Y%m%d%H%M%S}Z {path}\n"
        for path, each in certificates_at(command.node, patterns)
    ]
    is_complete = bool(lines) and any(line.endswith(f" {last}\n") for line in lines)
    return Finished(0 if is_complete else 1, "".join(lines[: int(limit)]).encode())


def _report_snapshots(command: Command, directory: str, known: str, limit: str, budget: str) -> Finished:
    """A file that it knows is not read again: its hash stays the same if only its content changes."""
    disk = command.node.disk
    before, after, read = disk.files.get(known) or {}, dict[tuple[str, int, int], str](), 0
    if not disk.is_directory(directory):
        return Finished(0)
    files = [each for each in reversed(disk.snapshots_in(directory)) if not each.compressed]
    for each in files[: int(limit)]:
        state = (each.name, each.size, each.created)
        if state in before:
            after[state] = before[state]
        elif read < int(budget):
            after[state], read = "" if each.damage else each.sha256, read + each.size
    if not disk.has_space(known):
        return Finished(1, stderr=f"{known}.new: No space left on device\n".encode())
    disk.files[known] = after
    lines = [f"snapshot {found} {name}\n" for (name, _, _), found in after.items() if found]
    return Finished(0, "".join(lines).encode())


async def _env(command: Command) -> Finished:
    variables = dict(command.environment)
    arguments = list(command.arguments)
    while arguments and "=" in arguments[0]:
        name, _, value = arguments.pop(0).partition("=")
        variables[name] = value
    if not arguments:
        return Finished(0)
    return await run(Command(command.node, arguments[0], arguments[1:], variables, command.image))


# --- installers -------------------------------------------------------------------------------------------------------


async def _install(command: Command) -> Finished:
    node, context = command.node, command.node.context
    await asyncio.sleep(context.pace.of(context.pace.pull, context.random))
    if context.random.random() < context.troubles.failed_install:
        return Finished(1, stderr=b"the image cannot be pulled")
    new = configuration.read_image(command.image, command.environment)
    if new is None:
        return command.not_found("run.sh")
    if new.runtime == "kubeadm":
        configuration.read_kubeadm_config(node.disk)
        node.disk.directories.add(posixpath.dirname(RESTORED))
        node.disk.files[kubeadm.REENCRYPT] = b""
        if problem := _kubeadm_problem(command):
            return Finished(1, stderr=f"kubeadm installer: {problem}\n".encode())
        if node.disk.installed != new:
            write_manifest(node)
    before, skips = node.disk.installed, configuration.skips_start(new.runtime, command.environment)
    node.disk.installed = configuration.without_start(new, before) if skips else new
    node.disk.disabled = False
    context.witness.installs(node, new)
    if skips:
        return Finished(0, f"{new.runtime} installer: {new.version} is installed; not started\n".encode())
    if before != new:
        node.service.stop(by_plan=True)
    node.service.start()
    is_awaited = new.runtime in _BLOCKS and not node.service.is_fenced
    return await node.service.wait_up() if is_awaited else Finished(0)


def _kubeadm_problem(command: Command) -> str:
    """Why the installer of kubeadm changes nothing."""
    disk = command.node.disk
    if configuration.skips_start("kubeadm", command.environment):
        return ""
    if disk.is_stopped:
        return "a restore has stopped this server and has not finished"
    if disk.etcd is not None and not disk.has_joined and RESTORED not in disk.files:
        return "[ERROR DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty"
    return ""


# --- services ---------------------------------------------------------------------------------------------------------


async def _systemctl(command: Command) -> Finished:
    verbs = [each for each in command.arguments if not each.startswith("-")]
    if not verbs:
        return Finished(1, stderr=b"systemctl: missing command\n")
    verb, units = verbs[0], [each.removesuffix(".service") for each in verbs[1:]]
    service = command.node.service
    known = command.node.disk.installed is not None
    for unit in units:
        if not known or unit not in UNITS[command.node.runtime]:
            return Finished(5, stderr=f"Failed to {verb} {unit}.service: Unit {unit}.service not loaded.\n".encode())
        own = unit == service.unit
        if verb == "is-active":
            state = service.state if own else "inactive"
            return Finished(0 if state == "active" else 3, f"{state}\n".encode())
        if own and verb in ("enable", "disable"):
            command.node.disk.disabled = verb == "disable"
        if unit == "kubelet" or not own or verb in ("reset-failed", "enable", "disable"):
            continue  # static pods do not stop with the kubelet
        if verb in ("stop", "restart"):
            service.stop(by_plan=True)
        if verb in ("start", "restart"):
            service.start()
            if unit in NOTIFIES and "--no-block" not in command.arguments and not service.is_fenced:
                finished = await service.wait_up(None)
                if finished.exit_code:
                    return finished
    if verb not in ("stop", "start", "restart", "reset-failed", "enable", "disable", "daemon-reload"):
        return Finished(1, stderr=f"Unknown command verb {verb}.\n".encode())
    return Finished(0)


async def _killall(command: Command) -> Finished:
    installed = command.node.disk.installed
    if installed is None or f"{installed.runtime}-killall.sh" != posixpath.basename(command.program):
        return command.not_found()
    command.node.service.stop(by_plan=True)
    return Finished(0)


# --- files ------------------------------------------------------------------------------------------------------------


async def _rm(command: Command) -> Finished:
    flags = [each for each in command.arguments if each.startswith("-")]
    disk = command.node.disk
    for path in command.arguments:
        if path.startswith("-"):
            continue
        problem = _removal_problem(path, flags, exists=disk.exists(path), is_directory=disk.is_directory(path))
        if problem:
            return Finished(1, stderr=f"rm: cannot remove '{path}': {problem}\n".encode())
        disk.remove(path)
    command.node.cluster.changed()
    return Finished(0)


def _removal_problem(path: str, flags: Sequence[str], *, exists: bool, is_directory: bool) -> str:
    letters = "".join(flags)
    if not path.startswith("/") or path.rstrip("/") == "":
        return "not an absolute path of the simulated disk"
    if any(character in path for character in "*?["):
        return "No such file or directory" if "f" not in letters else ""  # no shell expands it
    if not exists:
        return "" if "f" in letters else "No such file or directory"
    return "Is a directory" if is_directory and "r" not in letters else ""


async def _touch(command: Command) -> Finished:
    disk = command.node.disk
    for path in command.arguments:
        if not disk.is_directory(posixpath.dirname(path)):
            return Finished(1, stderr=f"touch: cannot touch '{path}': No such file or directory\n".encode())
        disk.files.setdefault(path, b"")
    return Finished(0)


async def _mkdir(command: Command) -> Finished:
    if "-p" not in command.arguments:
        return Finished(1, stderr=b"mkdir: only -p is simulated\n")
    command.node.disk.directories |= {each for each in command.arguments if each.startswith("/")}
    return Finished(0)


# --- programs of distributions ----------------------------------------------------------------------------------------


async def _rancher(command: Command) -> Finished:
    installed = command.node.disk.installed
    if installed is None or installed.runtime != posixpath.basename(command.program):
        return command.not_found()
    if list(command.arguments[:1]) == ["kubectl"]:
        return await _kubectl(command)
    return await k3s.run(command)


async def _kubectl(command: Command) -> Finished:
    """Only the query of the planner is simulated: why the pod of the cluster agent waits."""
    node = command.node
    template = any(each.startswith("--output=go-template=") for each in command.arguments)
    if node.disk.installed is None or "pods,events" not in command.arguments or not template:
        return command.not_found("kubectl: not simulated")
    if not node.running or not node.cluster.has_api:
        return Finished(1, stderr=b"The connection to the server was refused\n")
    return Finished(0, node.cluster.agent_status.encode())


async def _stale_nodes(command: Command) -> Finished:
    """Of embedded servers; the arguments are the UIDs of all Machines."""
    node = command.node
    if node.runtime != "herder":
        return command.not_found()
    for _ in range(TRIES):
        if node.running and node.cluster.has_api:
            await delete_stale_nodes(node.cluster.api, command.arguments)
            return Finished(0)
        await asyncio.sleep(RETRY_SECONDS)
    return Finished(1, stderr=b"cannot delete stale nodes: connection refused\n")


async def _python(command: Command) -> Finished:
    arguments = list(command.arguments)
    if arguments[:1] == [kubeadm.REENCRYPT]:
        return await kubeadm.reencrypt(command, arguments[1:])
    if "herder.snapshots" not in arguments:
        return command.not_found(arguments[0] if arguments else "")
    return await snapshots.run(command.node, arguments[arguments.index("herder.snapshots") + 1 :])


async def _snapshots(command: Command) -> Finished:
    if command.node.runtime not in snapshots.RUNTIMES:
        return command.not_found()
    return await snapshots.run(command.node, command.arguments)


_PROGRAMS: dict[str, Script] = {
    "sh": _sh,
    "env": _env,
    "systemctl": _systemctl,
    "k3s": _rancher,
    "rke2": _rancher,
    "kubectl": _kubectl,
    "kubeadm": kubeadm.run,
    "k3s-killall.sh": _killall,
    "rke2-killall.sh": _killall,
    "rm": _rm,
    "touch": _touch,
    "mkdir": _mkdir,
    "python3": _python,
    "herder-snapshots": _snapshots,
    "herder-stale-nodes": _stale_nodes,
}
