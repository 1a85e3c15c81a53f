"""`server --cluster-reset`: reset etcd to one member, from its own data or from a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from herder.sim.host.disk import Certificate, Snapshot
from herder.sim.host.etcd import EtcdCluster, EtcdData
from herder.sim.host.s3 import S3Error
from herder.sim.k3s.invocation import CommandFailed, Invocation

_START = "starting kubernetes: failed to start cluster: start managed database"
_DONE = (
    "Managed etcd cluster membership has been reset, restart without --cluster-reset flag now. Backup and delete "
    "${datadir}/server/db on each peer etcd server and rejoin the nodes"
)


async def run(run: Invocation) -> None:
    node, layout = run.node, run.node.disk.layout
    if not run.is_set("cluster-reset"):
        raise CommandFailed("only --cluster-reset is simulated; start the service instead")
    await _pause(run, 2.0)
    if node.service.state != "inactive":
        raise CommandFailed("listen tcp 127.0.0.1:6444: bind: address already in use")
    if run.option("server"):
        raise CommandFailed(
            "cannot perform cluster-reset while server URL is set - remove server from configuration before resetting"
        )
    path = run.option("cluster-reset-restore-path")
    if path:
        await _restore(run, path)
    elif layout.reset_flag in node.disk.files:
        raise CommandFailed(
            f"{_START}: Managed etcd cluster membership was previously reset, please remove the cluster-reset flag and "
            f"start {run.program} normally. If you need to perform another cluster reset, you must first manually "
            f"delete the file at {layout.reset_flag}"
        )
    else:
        await _reset(run)


async def _restore(run: Invocation, path: str) -> None:
    node, disk, layout = run.node, run.node.disk, run.node.disk.layout
    if run.is_set("etcd-s3"):
        path = _download(run, path)
    if path.endswith(".zip"):
        raise CommandFailed(f"{_START}: open {layout.snapshots}{path}: no such file or directory")
    snapshot = disk.files.get(path) if path.startswith("/") else None
    if snapshot is None:
        raise CommandFailed(f"{_START}: etcd: snapshot path does not exist: {path}")
    seconds = int(node.context.wall())
    if disk.etcd is not None:
        disk.move(layout.etcd, f"{layout.etcd}-old-{seconds}")
        run.log("info", f"Pre-restore etcd database moved to {layout.etcd}-old-{seconds}")
    await _pause(run, 5.0)
    if not isinstance(snapshot, Snapshot) or snapshot.damage == "text":
        raise CommandFailed(f"{_START}: seek {path}: invalid argument")
    if snapshot.damage:
        disk.files[f"{layout.etcd}/member"] = b""  # half restored, without a name
        raise CommandFailed(f"{_START}: expected sha256 [101 124 87], got [147 96 12]")
    new = EtcdCluster(node.context.new_id(), {node.name: node}, snapshot.content, snapshot.bootstrap)
    disk.remove(layout.etcd)
    await _finish(run, new, seconds)
    node.context.witness.restored(node, snapshot)


async def _reset(run: Invocation) -> None:
    """Keep the data, and remove all other members."""
    node = run.node
    old = node.disk.etcd
    if old is None:
        raise CommandFailed(f"{_START}: etcd: no data to reset")
    content = node.cluster.freeze() if node.cluster.etcd is old.cluster else old.cluster.content
    new = EtcdCluster(node.context.new_id(), {node.name: node}, content, old.cluster.bootstrap)
    await _finish(run, new, int(node.context.wall()))


async def _finish(run: Invocation, new: EtcdCluster, seconds: int) -> None:
    node, disk, layout = run.node, run.node.disk, run.node.disk.layout
    token = run.option("token")
    disk.files[layout.etcd] = EtcdData(new, node.new_member_name())
    disk.files[layout.reset_flag] = b""
    disk.files[layout.token] = token.encode()
    run.log("info", "Starting etcd for new cluster, cluster-reset=true")
    _back_up_certificates(disk.files, layout.tls, f"{layout.tls}-{seconds}")
    run.log("info", f"Cluster reset: backing up certificates directory to {layout.tls}-{seconds}")
    await _pause(run, 5.0)
    if new.bootstrap.token != token:
        text = "failed to save bootstrap data: bootstrap data already found and encrypted with different token"
        run.log("error", f'Shutdown request received: "{text}"')
        raise CommandFailed("context canceled", prefix="")
    run.log("warning", "Updating bootstrap data on disk from datastore")
    if new.bootstrap.encryption is not None:
        disk.files[layout.encryption] = new.bootstrap.encryption
    node.cluster.replace_etcd(node, new)
    run.log("error", f'Shutdown request received: "{_DONE}"')
    run.log("info", "Stopping etcd server...")
    run.log("info", "etcd server stopped")


def _back_up_certificates(files: dict[str, object], directory: str, target: str) -> None:
    copies: Mapping[str, object] = {
        target + path[len(directory) :]: content
        for path, content in files.items()
        if path.startswith(f"{directory}/") and isinstance(content, Certificate)
    }
    files.update(copies)


def _download(run: Invocation, name: str) -> str:
    try:
        found = run.node.context.s3.download(run.s3(), name)
    except S3Error as error:
        missing = str(error).startswith("The specified key")
        cause = "failed to download snapshot from S3" if missing else "failed to initialize S3 client"
        raise CommandFailed(f"{_START}: {cause}: {error}") from error
    path = f"{run.node.disk.layout.snapshots}/{name}"
    run.node.disk.files[path] = replace(found)
    run.log("info", f"S3 download complete for {path}")
    return path


async def _pause(run: Invocation, longest: float) -> None:
    await asyncio.sleep(run.node.context.pace.of(longest, run.node.context.random))
