"""What the scripts that rotate certificate authorities do on simulated machines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from herder.agent.core.events import Finished
from herder.controllers.planner.distributions.rancher import authorities
from herder.sim.host.certificates import AUTHORITIES, YEAR
from herder.sim.host.command import Command, Script
from herder.sim.host.disk import Certificate
from herder.sim.host.shell import execute


def digest(command: Command, directory: str) -> str:
    found = [command.node.disk.files[f"{directory}/{name}.crt"] for name in AUTHORITIES]
    return hashlib.sha256(repr([(each.serial, sorted(each.roots)) for each in found]).encode()).hexdigest()


def _report(command: Command, directory: str) -> Finished:
    return Finished(0, f"certificate authorities {digest(command, directory)}\n".encode())


def _run_of(command: Command) -> str:
    return command.environment["OPERATION"].partition("/")[0]


async def _prepare(command: Command) -> Finished:
    data, program = command.arguments
    node, files, tls, new = (
        command.node,
        command.node.disk.files,
        f"{data}/server/tls",
        f"{data}/server/new-authorities",
    )
    usable = await execute(command, program, "certificate", "rotate-ca", "--help")
    if usable.exit_code:
        return usable
    prepared = f"{_run_of(command)} {digest(command, tls)}"
    if files.get(f"{new}/prepared") == prepared:
        return Finished(0)
    node.disk.remove(new)
    for name in AUTHORITIES:
        old: Certificate = files[f"{tls}/{name}.crt"]
        issuing, root = node.context.serial(), node.context.serial()
        files[f"{new}/tls/{name}.crt"] = Certificate(
            old.subject,
            "CertSign",
            old.subject,
            root,
            issuing,
            node.context.wall() + 10 * YEAR,
            old.roots | {issuing, root},
        )
        files[f"{new}/tls/{name}.key"] = b"key"
    files[f"{new}/tls/service.key"] = files[f"{tls}/service.key"]
    files[f"{new}/prepared"] = prepared
    return _report(command, f"{new}/tls")


async def _replace(command: Command) -> Finished:
    data, program, unit = command.arguments
    disk, files, tls, new = (
        command.node.disk,
        command.node.disk.files,
        f"{data}/server/tls",
        f"{data}/server/new-authorities",
    )
    done = f"{data}/server/replaced-authorities"
    if files.get(done) == f"{_run_of(command)} {digest(command, tls)}":
        disk.remove(new)
        return _report(command, tls)
    if f"{new}/prepared" not in files:
        return Finished(1, stderr=b"the new CAs do not exist\n")
    wanted = digest(command, f"{new}/tls")
    if digest(command, tls) != wanted:
        if files[f"{new}/prepared"] != f"{_run_of(command)} {digest(command, tls)}":
            return Finished(1, stderr=b"the CAs of this server have changed since the new ones were created\n")
        started = await execute(command, "systemctl", "start", unit)
        if started.exit_code:
            return started
        saved = await execute(command, program, "certificate", "rotate-ca", f"--path={new}")
        if saved.exit_code:
            return saved
        if b"failed to stat" in saved.stdout + saved.stderr:
            return Finished(1, stderr=b"k3s did not find all new CAs\n")
    await execute(command, "systemctl", "stop", unit)
    for arguments in ((program, "certificate", "rotate"), ("systemctl", "start", unit)):
        finished = await execute(command, *arguments)
        if finished.exit_code:
            return finished
    if digest(command, tls) != wanted:
        return Finished(1, stderr=b"this server has restarted with other CAs than the new ones: they were not saved\n")
    files[done] = f"{_run_of(command)} {wanted}"
    disk.remove(new)
    return _report(command, tls)


async def _discard(command: Command) -> Finished:
    command.node.disk.remove(f"{command.arguments[0]}/server/new-authorities")
    return Finished(0)


async def _report_present(command: Command) -> Finished:
    return _report(command, f"{command.arguments[0]}/server/tls")


SCRIPTS: Mapping[str, Script] = {
    authorities.PREPARE_SCRIPT: _prepare,
    authorities.REPLACE_SCRIPT: _replace,
    authorities.DISCARD_SCRIPT: _discard,
    authorities.REPORT_SCRIPT: _report_present,
}
