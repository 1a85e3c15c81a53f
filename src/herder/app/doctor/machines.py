"""Checks of a host that is to have machines: those that the node drivers and the runner make themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path

from herder.app.doctor.finding import Finding, failed, ok, warning
from herder.engine.runner.isolation import UNAVAILABLE, HostUser, detect
from herder.machine.errors import MachineError
from herder.machine.host.local import rootless
from herder.machine.host.local.cgroups import Tree, trees
from herder.machine.host.local.kind import requirements
from herder.machine.host.local.options import Options
from herder.machine.host.process.kind import ProcessKind

DRIVERS = ("process", "local")
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
GOOD_INOTIFY_INSTANCES = 1024
READABLE = "install herder where this user can read it, or run it as another user"
FILE_SYSTEMS = Path("/proc/filesystems")


async def examine_machines(drivers: AbstractSet[str]) -> list[Finding]:
    """Requirements of drivers that are not in `drivers` are warnings."""
    findings = [await check_jobs()] if drivers else [(await check_jobs()).as_warning()]
    process, local = await check_process_machines(), check_local_machines()
    findings.append(process if "process" in drivers else process.as_warning())
    findings += local if "local" in drivers else [finding.as_warning() for finding in local]
    return findings


async def check_jobs() -> Finding:
    """Run a container of the runner, which creates machines with Jobs."""
    try:
        with tempfile.TemporaryDirectory(prefix="herder-doctor-") as scratch:
            isolation = await detect(Path(scratch), HostUser.named())
    except (KeyError, OSError) as error:
        return failed("jobs", f"containers of Jobs do not start: {error}", READABLE)
    if isolation is None:
        message, _, advice = UNAVAILABLE.partition("; ")
        return failed("jobs", message, advice)
    return ok("jobs", isolation.describe())


async def check_process_machines() -> Finding:
    """Boot a probe machine that runs nothing, as the host daemon does."""
    name = "process machines"
    try:
        with tempfile.TemporaryDirectory(prefix="herder-doctor-") as scratch:
            kind = ProcessKind(Path(scratch))
            await kind.prepare()
            kind.check({})
    except MachineError as error:
        return failed(name, error.message, error.advice)
    except (KeyError, OSError) as error:
        return failed(name, f"a probe machine does not boot: {error}", READABLE)
    if not kind.has_user_namespaces:
        return warning(
            name,
            "this host does not allow user namespaces, so root in a machine is the user nobody of the host",
            "set the sysctl user.max_user_namespaces",
        )
    return ok(name, "a probe machine booted in namespaces of its own")


def check_local_machines(options: Options | None = None) -> list[Finding]:
    wanted = options or Options(kubernetes=True)
    findings = []
    for requirement, check in requirements(wanted).items():
        name = f"local machines: {requirement}"
        try:
            check()
        except MachineError as error:
            findings.append(failed(name, error.message, error.advice))
        except OSError as error:
            findings.append(failed(name, str(error), "run herder as root"))
        else:
            findings.append(ok(name, "present"))
    findings = [_with_controllers(finding) if finding.check.endswith("cgroups") else finding for finding in findings]
    return [*findings, check_overlay(_text(FILE_SYSTEMS)), check_inotify(_text(INOTIFY))]


def _with_controllers(finding: Finding) -> Finding:
    """Present cgroups may still not offer limits, or be version 1."""
    return check_controllers(trees()) if finding.message == "present" else finding


def check_controllers(found: list[Tree]) -> Finding:
    name = "local machines: cgroups"
    version_2_alone = [tree.options for tree in found] == [""]
    offered = {controller for tree in found for controller in tree.controllers if controller}
    for tree in found:
        if not tree.options:
            offered |= set(_text(tree.base.parent / "cgroup.controllers").split())
    if missing := sorted({"cpu", "memory"} - offered):
        message = f"no limits for machines: the controllers {' and '.join(missing)} are not delegated"
        return warning(name, message, "run herder as root, or delegate them with Delegate=yes of the unit")
    if not version_2_alone:
        message = "cgroup v1: kubelets in machines need failCgroupV1: false, which Herder sets for kubeadm clusters"
        return warning(name, message, "boot with systemd.unified_cgroup_hierarchy=1")
    return ok(name, "cgroup v2 with the controllers cpu and memory")


def check_overlay(file_systems: str) -> Finding:
    name = "local machines: overlayfs"
    if "overlay" not in file_systems.split():
        return warning(name, "overlayfs is not loaded", "load it: modprobe overlay")
    return ok(name, "present, also without root" if rootless.needed() else "present")


def check_inotify(text: str) -> Finding:
    name = "local machines: inotify"
    if not text.strip().isdecimal():
        return warning(name, f"cannot read {INOTIFY}", "mount /proc")
    if int(text) < GOOD_INOTIFY_INSTANCES:
        message = f"{text.strip()} inotify instances are enough for {int(text) // 20} machines with Kubernetes"
        return warning(name, message, f"sysctl -w fs.inotify.max_user_instances={GOOD_INOTIFY_INSTANCES}")
    return ok(name, f"{text.strip()} inotify instances")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
