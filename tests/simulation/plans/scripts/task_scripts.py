"""What the scripts of tasks do on simulated machines. A unit test runs the scripts themselves in a shell."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from herder.agent.core.events import Finished
from herder.controllers.planner.distributions import embedded_rotation, embedded_tasks, snapshot_program
from herder.controllers.planner.distributions.agent_task import REDEPLOY_SCRIPT
from herder.controllers.planner.distributions.kubeadm import certificates, encryption
from herder.controllers.planner.distributions.kubeadm import snapshots as kubeadm
from herder.controllers.planner.distributions.rancher import tasks
from herder.controllers.planner.distributions.tasks import DELETE_NODES_SCRIPT
from herder.embedded.stale_nodes import delete_stale_nodes
from herder.sim.host.certificates import KUBELET_PKI, leaves, new_certificate
from herder.sim.host.command import Command, Script
from herder.sim.host.disk import Snapshot
from herder.sim.host.managed_keys import FLAG, KUBEADM_MANIFEST
from herder.sim.host.shell import execute
from herder.sim.kubeadm.program import INIT_CONFIG, REENCRYPT
from tests.simulation.plans.scripts import authority_scripts
from tests.simulation.plans.scripts.agent_scripts import redeploy_agent

RETRIES, RETRY_SECONDS = 24, 5.0


async def _save(command: Command) -> Finished:
    runtime, directory = command.arguments
    saved = await execute(command, runtime, "etcd-snapshot", "save")
    if saved.exit_code:
        return saved
    name = re.search(r"Snapshot (\S+) saved\.", (saved.stdout + saved.stderr).decode())
    if name is None:
        return Finished(1, stderr=b"no snapshot was saved; the log of the service has the cause\n")
    file = command.node.disk.files.get(f"{directory}/{name[1]}")
    hashes = {name[1]: file.sha256} if isinstance(file, Snapshot) else {}
    listed = await execute(command, runtime, "etcd-snapshot", "ls", "-o", "json")
    found = authority_scripts.digest(command, command.node.disk.layout.tls)
    report = f'{{"hashes":{json.dumps(hashes)},"authorities":"{found}","list":{listed.stdout.decode()}}}\n'
    return Finished(listed.exit_code, report.encode())


async def _save_by_program(command: Command) -> Finished:
    program, config, metadata, name = command.arguments
    arguments = ("--config", config, "--name", name, "--metadata", metadata)
    saved = await execute(command, program, "save", *arguments)
    return saved if saved.exit_code else await execute(command, program, "list", "--config", config)


async def _delete(command: Command) -> Finished:
    runtime, *files = command.arguments
    for in_s3, name in zip(files[::2], files[1::2], strict=True):
        options = () if in_s3 == "true" else ("--etcd-s3=false",)
        deleted = await execute(command, runtime, "etcd-snapshot", "delete", *options, name)
        if deleted.exit_code:
            return deleted
    return Finished(0)


async def _delete_by_program(command: Command) -> Finished:
    program, config, *files = command.arguments
    for in_s3, name in zip(files[::2], files[1::2], strict=True):
        options = ("--s3",) if in_s3 == "true" else ()
        deleted = await execute(command, program, "delete", "--config", config, name, *options)
        if deleted.exit_code:
            return deleted
    return Finished(0)


async def _check(command: Command) -> Finished:
    path, recorded = command.arguments
    file = command.node.disk.files.get(path)
    if file is None:
        return Finished(1, stderr=f"{path} does not exist\n".encode())
    if not isinstance(file, Snapshot) or (recorded and file.sha256 != recorded):
        return Finished(1, stderr=f"{path} is another file than the one that was saved: its hash differs\n".encode())
    return Finished(1, stderr=f"{path} is corrupt: its hash is wrong\n".encode()) if file.damage else Finished(0)


async def _check_s3(command: Command) -> Finished:
    name, program, *arguments = command.arguments
    listed = await execute(command, program, *arguments)
    if listed.exit_code:
        return listed
    rows = [line.split() for line in listed.stdout.decode().splitlines()]
    if any(row[0] == name and row[1].startswith("s3://") for row in rows if len(row) > 1):
        return Finished(0)
    return Finished(1, stderr=f"the bucket has no snapshot {name}\n".encode())


async def _systemctl(command: Command) -> Finished:
    return await execute(command, "systemctl", *command.arguments)


def _fence(command: Command, unit: str, data: str, units: str) -> None:
    """A drop-in of systemd with a condition, which this file does not fulfill."""
    path = f"{data}/server/db/restore-fence"
    drop_in = f"{units}/{unit}.service.d/50-herder-restore.conf"
    command.node.disk.files[drop_in] = f"[Unit]\nConditionPathExists=!{path}\n".encode()
    command.node.disk.files[path] = f"{_run_of(command)}\n".encode()


def _unfence(command: Command, data: str) -> None:
    command.node.disk.files.pop(f"{data}/server/db/restore-fence", None)


async def _stop(command: Command) -> Finished:
    killall, unit, data, units = command.arguments
    if units:
        _fence(command, unit, data, units)
    return await execute(command, killall)


async def _drop(command: Command) -> Finished:
    unit, data = command.arguments
    disk, marker = command.node.disk, f"{data}/server/db/dropped-for"
    restore = command.environment["OPERATION"].partition("/")[0]
    if disk.files.get(marker) == restore:
        _unfence(command, data)
        return Finished(0)
    await execute(command, "systemctl", "stop", unit)
    disk.files.pop(f"{data}/server/db/restore-journal", None)
    await execute(command, "rm", "-rf", f"{data}/server/db/etcd")
    disk.files[marker] = restore
    _unfence(command, data)
    return Finished(0)


@dataclass
class _Journal:
    """Of a restore of K3s or RKE2 that is neither committed nor undone."""

    run: str
    old: set[str]  # data of earlier restores
    is_empty: bool  # whether there was no data before
    encryption: Any
    is_completed: bool = False


def _run_of(command: Command) -> str:
    return command.environment["OPERATION"].partition("/")[0]


def _journal_of(command: Command, data: str) -> _Journal | None:
    found: _Journal | None = command.node.disk.files.get(f"{data}/server/db/restore-journal")
    return found


async def _settle(command: Command, unit: str, data: str, accepted: str) -> None:
    journal = _journal_of(command, data)
    if journal is not None and journal.run == accepted:
        command.node.disk.files.pop(f"{data}/server/db/restore-journal")
    else:
        await _undo(command, unit, data)


async def _undo(command: Command, unit: str, data: str) -> None:
    """Put the data back that a restore has moved away."""
    disk, db, journal = command.node.disk, f"{data}/server/db", _journal_of(command, data)
    if journal is None:
        return
    await execute(command, "systemctl", "stop", unit)
    if journal.is_empty:
        disk.remove(f"{db}/etcd")
    for old in _old_data(command, db) - journal.old:
        disk.remove(f"{db}/etcd")
        disk.move(old, f"{db}/etcd")
    disk.remove(disk.layout.encryption)
    if journal.encryption is not None:
        disk.files[disk.layout.encryption] = journal.encryption
    disk.remove(disk.layout.reset_flag)
    disk.files.pop(f"{db}/restore-journal")


def _old_data(command: Command, db: str) -> set[str]:
    return {path for path in command.node.disk.files if path.startswith(f"{db}/etcd-old-")}


async def _restore(command: Command) -> Finished:
    unit, data, accepted, units, program, *arguments = command.arguments
    disk, db, journal = command.node.disk, f"{data}/server/db", _journal_of(command, data)
    if journal is not None and journal.run == _run_of(command) and journal.is_completed:
        return Finished(0, b"the snapshot was restored already\n")
    await execute(command, "systemctl", "stop", unit)
    _fence(command, unit, data, units)
    await _settle(command, unit, data, accepted)
    journal = _Journal(_run_of(command), _old_data(command, db), disk.etcd is None, disk.encryption)
    disk.files[f"{db}/restore-journal"] = journal
    restored = await execute(command, program, *arguments)
    if restored.exit_code == 0:
        journal.is_completed = True
        return restored
    await _undo(command, unit, data)
    _unfence(command, data)
    return restored


async def _undo_restore(command: Command) -> Finished:
    unit, data, accepted = command.arguments
    await _settle(command, unit, data, accepted)
    _unfence(command, data)
    return Finished(0)


async def _commit_restore(command: Command) -> Finished:
    _unit, data, _accepted = command.arguments
    journal = _journal_of(command, data)
    if journal is not None and not (journal.run == _run_of(command) and journal.is_completed):
        return Finished(1, stderr=b"no restore of this operation has completed here\n")
    command.node.disk.files.pop(f"{data}/server/db/restore-journal", None)
    _unfence(command, data)
    return Finished(0)


async def _restore_kubeadm(command: Command) -> Finished:
    program, config, state, *arguments = command.arguments
    restored = await execute(command, program, "restore", "--config", config, *arguments)
    if restored.exit_code or command.node.disk.has_joined:
        return restored
    return await execute(command, "touch", f"{state}/restored")


async def _stop_embedded(command: Command) -> Finished:
    return await execute(command, "systemctl", "stop", command.arguments[0])


async def _start_embedded(command: Command) -> Finished:
    return await execute(command, "systemctl", "start", command.arguments[0])


async def _restore_embedded(command: Command) -> Finished:
    service, program, *arguments = command.arguments
    await execute(command, "systemctl", "stop", service)
    return await execute(command, program, *arguments)


async def _undo_embedded(command: Command) -> Finished:
    service, journal, program, *arguments = command.arguments
    if journal not in command.node.disk.files:
        return Finished(0)
    await execute(command, "systemctl", "stop", service)
    return await execute(command, program, *arguments)


async def _rotate(command: Command) -> Finished:
    unit, _data, program, *arguments = command.arguments
    await execute(command, "systemctl", "stop", unit)
    rotated = await execute(command, program, *arguments)
    started = await execute(command, "systemctl", "start", unit)
    return rotated if rotated.exit_code else started


ENCRYPTION_STAGES = {
    "prepare": ("prepare", "rotate"),
    "rotate": ("rotate", "reencrypt_request", "reencrypt_active", "reencrypt_finished"),
    "reencrypt": ("reencrypt_finished",),
}
"""Stages in which a step is done."""


async def _encrypt(command: Command) -> Finished:
    program, step = command.arguments
    reached, last, tries = ENCRYPTION_STAGES[step], Finished(1), 0
    while tries <= RETRIES:
        status = await execute(command, program, "secrets-encrypt", "status")
        if b"Encryption Status: Disabled" in status.stdout:
            return Finished(1, stderr=b"encryption of Secrets is not enabled\n")
        stage = status.stdout.decode().partition("Current Rotation Stage: ")[2].partition("\n")[0]
        if stage in reached:
            return status
        if stage in ("reencrypt_request", "reencrypt_active"):
            reached = (*reached, "reencrypt_finished")
        else:
            tries += 1
            last = await execute(command, program, "secrets-encrypt", step) if stage else status
        await asyncio.sleep(RETRY_SECONDS)
    return last


async def _delete_nodes(command: Command) -> Finished:
    for _ in range(RETRIES):
        if command.node.running and command.node.cluster.has_api:
            await delete_stale_nodes(command.node.cluster.api, command.arguments[0].split())
            return Finished(0)
        await asyncio.sleep(RETRY_SECONDS)
    return Finished(1, stderr=b"The connection to the server was refused\n")


# --- kubeadm ----------------------------------------------------------------------------------------------------------


async def _restart(command: Command) -> Finished:
    """Static pods: the kubelet starts another container."""
    command.node.service.stop(by_plan=True)
    command.node.service.start()
    return await command.node.service.wait_up()


async def _rotate_kubeadm(command: Command) -> Finished:
    _name, certificates, components, kubelet = command.arguments
    node = command.node
    for each in certificates.split():
        renewed = await execute(command, "kubeadm", "certs", "renew", each, "--config", INIT_CONFIG)
        if renewed.exit_code:
            return renewed
    if components:
        restarted = await _restart(command)
        if restarted.exit_code:
            return restarted
    if kubelet and not node.cluster.has_api:
        return Finished(1, stderr=b"The connection to the server was refused\n")
    for path, leaf in leaves(node) if kubelet else ():
        if path.startswith(KUBELET_PKI):
            node.disk.files[f"{path}.crt"] = new_certificate(node, leaf)
    return Finished(0)


def _matches(command: Command) -> bool:
    path, digest = command.arguments[:2]
    content = command.node.disk.files.get(path, b"")
    return hashlib.sha256(content).hexdigest() == digest


def _report(command: Command) -> Finished:
    return Finished(0, f"encryption configuration {command.arguments[1]}\n".encode())


async def _check_file(command: Command) -> Finished:
    return _report(command) if _matches(command) else Finished(1, stderr=b"the file is not of this plan\n")


async def _check_keys(command: Command) -> Finished:
    for _ in range(RETRIES):
        if command.node.cluster.has_api and command.node.reads_secrets:
            return await _check_file(command)
        await asyncio.sleep(RETRY_SECONDS)
    return Finished(1, stderr=b"Secrets of the cluster cannot be read\n")


async def _load_kubeadm_keys(command: Command) -> Finished:
    if not _matches(command):
        return Finished(1, stderr=b"the file is not of this plan\n")
    if FLAG not in command.node.disk.files[KUBEADM_MANIFEST]:
        arguments = ("init", "phase", "control-plane", "apiserver", "--config", INIT_CONFIG)
        written = await execute(command, "kubeadm", *arguments)
        if written.exit_code:
            return written
    restarted = await _restart(command)
    return restarted if restarted.exit_code else _report(command)


async def _reencrypt_kubeadm(command: Command) -> Finished:
    if not _matches(command):
        return Finished(1, stderr=b"the file is not of this plan\n")
    arguments = ("--kubeconfig", "/etc/kubernetes/admin.conf", "--prefix", command.arguments[2])
    done = await execute(command, "python3", REENCRYPT, *arguments)
    return done if done.exit_code else _report(command)


# --- the embedded distribution ----------------------------------------------------------------------------------------


async def _restart_embedded(command: Command) -> Finished:
    restarted = await execute(command, "systemctl", "restart", "herder-server")
    return restarted if restarted.exit_code else await command.node.service.wait_up()


async def _rotate_embedded(command: Command) -> Finished:
    directory, *names = command.arguments
    await execute(command, "rm", "-f", *(f"{directory}/{each}{end}" for each in names for end in (".crt", ".key")))
    return await _restart_embedded(command)


async def _load_embedded_keys(command: Command) -> Finished:
    if not _matches(command):
        return Finished(1, stderr=b"the file is not of this plan\n")
    restarted = await _restart_embedded(command)
    return restarted if restarted.exit_code else _report(command)


async def _reencrypt_embedded(command: Command) -> Finished:
    _keys, digest, status = command.arguments
    for _ in range(RETRIES):
        if f"encrypted {digest}" in command.node.disk.files.get(status, b"").decode().splitlines():
            return _report(command)
        await asyncio.sleep(RETRY_SECONDS)
    return Finished(1, stderr=b"the server has not encrypted all Secrets again\n")


SCRIPTS: Mapping[str, Script] = {
    certificates.ROTATE_SCRIPT: _rotate_kubeadm,
    encryption.CHECK_SCRIPT: _check_keys,
    encryption.RESTART_SCRIPT: _load_kubeadm_keys,
    encryption.REENCRYPT_SCRIPT: _reencrypt_kubeadm,
    embedded_rotation.ROTATE_SCRIPT: _rotate_embedded,
    embedded_rotation.CHECK_SCRIPT: _check_file,
    embedded_rotation.RESTART_SCRIPT: _load_embedded_keys,
    embedded_rotation.REENCRYPT_SCRIPT: _reencrypt_embedded,
    tasks.SAVE_SCRIPT: _save,
    snapshot_program.SAVE_SCRIPT: _save_by_program,
    tasks.DELETE_SCRIPT: _delete,
    snapshot_program.DELETE_SCRIPT: _delete_by_program,
    tasks.CHECK_SCRIPT: _check,
    tasks.CHECK_S3_SCRIPT: _check_s3,
    tasks.SYSTEMCTL_SCRIPT: _systemctl,
    tasks.STOP_SCRIPT: _stop,
    tasks.DROP_SCRIPT: _drop,
    tasks.RESTORE_SCRIPT: _restore,
    tasks.UNDO_RESTORE_SCRIPT: _undo_restore,
    tasks.COMMIT_RESTORE_SCRIPT: _commit_restore,
    tasks.ROTATE_SCRIPT: _rotate,
    tasks.ENCRYPT_SCRIPT: _encrypt,
    kubeadm.RESTORE_SCRIPT: _restore_kubeadm,
    embedded_tasks.STOP_SCRIPT: _stop_embedded,
    embedded_tasks.START_SCRIPT: _start_embedded,
    embedded_tasks.RESTORE_SCRIPT: _restore_embedded,
    embedded_tasks.UNDO_SCRIPT: _undo_embedded,
    DELETE_NODES_SCRIPT: _delete_nodes,
    REDEPLOY_SCRIPT: redeploy_agent,
    **authority_scripts.SCRIPTS,
}
