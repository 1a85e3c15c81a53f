"""`etcd-snapshot`: save, list, delete and prune, on the disk and in S3."""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from herder.sim.host.disk import Snapshot
from herder.sim.host.s3 import S3Error, S3Settings
from herder.sim.host.s3 import named as objects_in
from herder.sim.k3s.invocation import CommandFailed, Invocation, rfc3339

_DURATION = 4.0


async def save(run: Invocation) -> None:
    await _reach_server(run)
    node, disk = run.node, run.node.disk
    directory = run.option("etcd-snapshot-dir", disk.layout.snapshots)
    if directory != disk.layout.snapshots and not disk.is_directory(directory):
        text = f"failed to get etcd-snapshot-dir: stat {directory}: no such file or directory"
        raise run.server_error("etcd-snapshot", text, "Internal error occurred: ")
    bucket, settings = _bucket(run)
    etcd = disk.etcd
    if etcd is None or not node.cluster.has_quorum:
        raise run.server_error("etcd-snapshot", "etcd is not available", "Internal error occurred: ")
    seconds, compressed = int(node.context.wall()), run.is_set("etcd-snapshot-compress")
    name = f"{run.option('etcd-snapshot-name', 'on-demand')}-{node.name}-{seconds}"
    node.snapshot_directory = directory
    snapshot = Snapshot(
        f"{name}.zip" if compressed else name,
        node.name,
        seconds,
        node.cluster.freeze(),
        etcd.cluster.bootstrap,
        _extra_metadata(run),
        compressed,
    )
    path = f"{directory}/{snapshot.name}"
    problem = _write_problem(run, snapshot.name, path)
    if problem:
        # The program prints nothing and exits with 0: only the object and an Event report the failure.
        node.cluster.report_failed_snapshot(node, name, problem)
        return
    if bucket is not None:
        bucket[settings.key(snapshot.name)] = snapshot
        run.log("info", f"Snapshot {snapshot.name} saved.")
    disk.files[path] = snapshot
    run.log("info", f"Snapshot {snapshot.name} saved.")
    node.context.witness.saved(node, snapshot)
    node.cluster.snapshots_changed(node)


def _write_problem(run: Invocation, name: str, path: str) -> str:
    if "/" in name:
        return f"could not open {path}.part (open {path}.part: no such file or directory)"
    if not run.node.disk.has_space(path):
        return f"could not write snapshot: write {path}.part: no space left on device"
    return ""


def _extra_metadata(run: Invocation) -> dict[str, str]:
    """Data of the ConfigMap that the manifests of a server deploy."""
    suffix = f"/{run.program}-etcd-snapshot-extra-metadata.yaml"
    for node in run.node.cluster.nodes.values():
        for path, content in node.disk.files.items():
            if path.endswith(suffix) and isinstance(content, bytes) and content:
                return dict((yaml.safe_load(content) or {}).get("data") or {})
    return {}


async def show(run: Invocation) -> None:
    await _reach_server(run)
    node = run.node
    directory = run.option("etcd-snapshot-dir", node.disk.layout.snapshots)
    node.snapshot_directory = directory
    found = [(f"file://{directory}/{each.name}", each, "local") for each in node.disk.snapshots_in(directory)]
    bucket, settings = _bucket(run)
    if bucket is not None:
        names = sorted(objects_in(bucket, settings))
        found += [(settings.location(name), bucket[settings.key(name)], "s3") for name in names]
    node.cluster.snapshots_changed(node)
    output = run.option("o", run.option("output", "table"))
    if output == "table":
        rows = [(each.name, where, str(each.size), rfc3339(each.created)) for where, each, _ in found]
        run.print(_table([("Name", "Location", "Size", "Created"), *rows]))
        return
    items = [_item(run.program, where, each, storage) for where, each, storage in found]
    listed = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
    run.print(f"{json.dumps(listed, indent=4)}\n" if output == "json" else yaml.safe_dump(listed, sort_keys=False))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        " ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def _item(program: str, location: str, snapshot: Snapshot, storage: str) -> dict[str, Any]:
    where = "s3" if storage == "s3" else snapshot.node
    extra = {"metadata": snapshot.metadata} if snapshot.metadata else {}
    return {
        "kind": "ETCDSnapshotFile",
        "apiVersion": "k3s.cattle.io/v1",
        "metadata": {
            "name": f"{storage}-{snapshot.name}",
            "labels": {f"etcd.{program}.cattle.io/snapshot-storage-node": where},
        },
        "spec": {"location": location, "nodeName": snapshot.node, "snapshotName": snapshot.name, **extra},
        "status": {"creationTime": rfc3339(snapshot.created), "readyToUse": True, "size": str(snapshot.size)},
    }


async def delete(run: Invocation) -> None:
    if not run.names:
        raise CommandFailed("no snapshots given for removal")
    await _reach_server(run)
    bucket, settings = _bucket(run)
    directory = run.option("etcd-snapshot-dir", run.node.disk.layout.snapshots)
    run.node.snapshot_directory = directory
    for name in run.names:
        removed = run.node.disk.files.pop(f"{directory}/{name}", None)
        if bucket is not None:
            removed = bucket.pop(settings.key(name), None) or removed
        if removed is None:
            run.log("warning", f"Snapshot {name} not found.")
        else:
            run.log("info", f"Snapshot {name} deleted.")
    run.node.cluster.snapshots_changed(run.node)


async def prune(run: Invocation) -> None:
    await _reach_server(run)
    prefix, kept = run.option("etcd-snapshot-name", "on-demand"), int(run.option("etcd-snapshot-retention", "5"))
    directory = run.option("etcd-snapshot-dir", run.node.disk.layout.snapshots)
    run.node.snapshot_directory = directory
    own = [each for each in run.node.disk.snapshots_in(directory) if each.name.startswith(prefix)]
    for each in own[: max(len(own) - kept, 0)]:
        run.node.disk.files.pop(f"{directory}/{each.name}")
        run.log("info", f"Snapshot {each.name} deleted.")
    bucket, settings = _bucket(run)
    if bucket is not None:
        stored = [bucket[settings.key(name)] for name in objects_in(bucket, settings) if name.startswith(prefix)]
        stored.sort(key=lambda each: (each.created, each.name))
        for each in stored[: max(len(stored) - settings.retention, 0)]:
            bucket.pop(settings.key(each.name))
            run.log("info", f"Snapshot {each.name} deleted.")
    run.node.cluster.snapshots_changed(run.node)


async def _reach_server(run: Invocation) -> None:
    run.warn_unknown_flags()
    await reach_server(run)
    await asyncio.sleep(run.node.context.pace.of(_DURATION, run.node.context.random))


async def reach_server(run: Invocation) -> None:
    """The program sends requests to the server of the same machine."""
    layout = run.node.disk.layout
    if layout.token not in run.node.disk.files:
        raise CommandFailed(f"open {layout.token}: no such file or directory")
    port = 6443 if run.program == "k3s" else 9345
    if not run.node.running:
        raise CommandFailed(
            f'failed to get CA certs: Get "https://127.0.0.1:{port}/cacerts": dial tcp 127.0.0.1:{port}: '
            "connect: connection refused"
        )


def _bucket(run: Invocation) -> tuple[dict[str, Snapshot] | None, S3Settings]:
    if not run.is_set("etcd-s3"):
        return None, S3Settings("", "")
    settings = run.s3()
    try:
        return run.node.context.s3.bucket(settings), settings
    except S3Error as error:
        raise CommandFailed(f"see server log for details: failed to initialize S3 client: {error}") from error


def renamed(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, name=posixpath.basename(name))
