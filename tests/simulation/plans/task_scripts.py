"""What the scripts of tasks do on simulated machines. A unit test runs the scripts themselves in a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from herder.agent.core.events import Finished
from herder.controllers.planner.distributions import embedded_tasks, snapshot_program
from herder.controllers.planner.distributions.kubeadm import snapshots as kubeadm
from herder.controllers.planner.distributions.rancher import tasks
from herder.controllers.planner.distributions.tasks import DELETE_NODES_SCRIPT
from herder.embedded.stale_nodes import delete_stale_nodes
from herder.sim.host.command import Command, Script
from herder.sim.host.shell import execute

RETRIES, RETRY_SECONDS = 24, 5.0


async def _save(command: Command) -> Finished:
    runtime = command.arguments[0]
    saved = await execute(command, runtime, "etcd-snapshot", "save")
    if saved.exit_code:
        return saved
    if b"saved." not in saved.stdout + saved.stderr:
        return Finished(1, stderr=b"no snapshot was saved; the log of the service has the cause\n")
    return await execute(command, runtime, "etcd-snapshot", "ls", "-o", "json")


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
    path = command.arguments[0]
    exists = command.node.disk.exists(path)
    return Finished(0) if exists else Finished(1, stderr=f"{path} does not exist\n".encode())


async def _systemctl(command: Command) -> Finished:
    return await execute(command, "systemctl", *command.arguments)


async def _stop(command: Command) -> Finished:
    return await execute(command, command.arguments[0])


async def _drop(command: Command) -> Finished:
    unit, data = command.arguments
    await execute(command, "systemctl", "stop", unit)
    return await execute(command, "rm", "-rf", f"{data}/server/db/etcd")


async def _restore(command: Command) -> Finished:
    """No restore fails half-way in these simulations, so nothing is put back."""
    unit, _data, program, *arguments = command.arguments
    await execute(command, "systemctl", "stop", unit)
    return await execute(command, program, *arguments)


async def _restore_kubeadm(command: Command) -> Finished:
    program, config, state, *arguments = command.arguments
    restored = await execute(command, program, "restore", "--config", config, *arguments)
    if restored.exit_code:
        return restored
    if command.node.disk.has_joined:
        return await execute(command, program, "start", "--config", config)
    return await execute(command, "touch", f"{state}/restored")


async def _stop_embedded(command: Command) -> Finished:
    return await execute(command, "systemctl", "stop", command.arguments[0])


async def _start_embedded(command: Command) -> Finished:
    return await execute(command, "systemctl", "start", command.arguments[0])


async def _restore_embedded(command: Command) -> Finished:
    service, program, *arguments = command.arguments
    await execute(command, "systemctl", "stop", service)
    return await execute(command, program, *arguments)


async def _rotate(command: Command) -> Finished:
    unit, _data, program, *arguments = command.arguments
    await execute(command, "systemctl", "stop", unit)
    rotated = await execute(command, program, *arguments)
    return rotated if rotated.exit_code else await execute(command, "systemctl", "start", unit)


async def _encrypt(command: Command) -> Finished:
    stage, program, group, step = command.arguments
    wanted = f"Current Rotation Stage: {stage}\n".encode()
    last = Finished(1)
    for _ in range(RETRIES):
        status = await execute(command, program, group, "status")
        if wanted in status.stdout:
            return status
        last = await execute(command, program, group, step)
        await asyncio.sleep(RETRY_SECONDS)
    return last


async def _delete_nodes(command: Command) -> Finished:
    await delete_stale_nodes(command.node.cluster.api, command.arguments[0].split())
    return Finished(0)


SCRIPTS: Mapping[str, Script] = {
    tasks.SAVE_SCRIPT: _save,
    snapshot_program.SAVE_SCRIPT: _save_by_program,
    tasks.DELETE_SCRIPT: _delete,
    snapshot_program.DELETE_SCRIPT: _delete_by_program,
    tasks.CHECK_SCRIPT: _check,
    tasks.SYSTEMCTL_SCRIPT: _systemctl,
    tasks.STOP_SCRIPT: _stop,
    tasks.DROP_SCRIPT: _drop,
    tasks.RESTORE_SCRIPT: _restore,
    tasks.ROTATE_SCRIPT: _rotate,
    tasks.ENCRYPT_SCRIPT: _encrypt,
    kubeadm.RESTORE_SCRIPT: _restore_kubeadm,
    embedded_tasks.STOP_SCRIPT: _stop_embedded,
    embedded_tasks.START_SCRIPT: _start_embedded,
    embedded_tasks.RESTORE_SCRIPT: _restore_embedded,
    DELETE_NODES_SCRIPT: _delete_nodes,
}
