"""Effects of several commands of the simulated k3s in a row, as a real k3s v1.36.3 had them."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.simulation.host.servers import Servers, run
from tests.simulation.host.test_transcripts import (
    RESTORE,
    D,
    all_stopped,
    k3s,
    keep,
    leaf_files,
    names,
    objects,
    restored,
    three_snapshots,
)


def test_unknown_flags_are_reported_once_for_each_value() -> None:
    async def scenario(servers: Servers) -> None:
        finished = await servers.run("s1", *k3s("etcd-snapshot", "save"))
        lines = finished.stderr.decode().splitlines()
        label = r'level=warning msg="Unknown flag --node-label found in config.yaml, skipping\n"'
        assert lines.count(label) == 2
        assert r'level=warning msg="Unknown flag --token found in config.yaml, skipping\n"' in lines

    run(scenario)


def test_deleted_files_lose_their_objects() -> None:
    async def scenario(servers: Servers) -> None:
        await three_snapshots(servers)
        [name, *_] = names(servers)
        assert len(await objects(servers)) == 3
        deleted = await servers.run("s1", *k3s("etcd-snapshot", "delete", name))
        assert f"Snapshot {name} deleted." in deleted.stderr.decode()
        assert name not in [each["spec"]["snapshotName"] for each in await objects(servers)]

    run(scenario)


def test_another_directory_hides_the_objects_of_the_default_one() -> None:
    async def scenario(servers: Servers) -> None:
        await three_snapshots(servers)
        servers["s1"].disk.directories.add("/srv/other")
        await servers.run("s1", *k3s("etcd-snapshot", "save", "--dir", "/srv/other"))
        assert len(await objects(servers)) == 1
        await servers.run("s1", *k3s("etcd-snapshot", "ls"))
        assert len(await objects(servers)) == 3

    run(scenario)


def test_a_wrong_token_stays_until_the_next_restore() -> None:
    async def scenario(servers: Servers) -> None:
        await all_stopped()(servers)
        failed = await servers.run("s1", *RESTORE, "--token=WRONG")
        assert failed.exit_code == 1
        assert failed.stderr.decode().endswith('level=fatal msg="context canceled"\n')
        assert "bootstrap data already found and encrypted with different token" in failed.stderr.decode()
        assert servers["s1"].disk.files[f"{D}/server/token"] == b"WRONG"
        assert f"{D}/server/db/reset-flag" in servers["s1"].disk.files
        assert (await servers.run("s1", *RESTORE)).exit_code == 0
        await restored(servers)

    run(scenario)


def test_certificates_of_a_running_service_go_at_once() -> None:
    async def scenario(servers: Servers) -> None:
        assert leaf_files(servers) == 38
        assert (await servers.run("s1", *k3s("certificate", "rotate", "-s", "api-server"))).exit_code == 0
        assert servers["s1"].running
        assert leaf_files(servers) == 34
        await servers.run("s1", "systemctl", "restart", "k3s")
        assert leaf_files(servers) == 38

    run(scenario)


def test_a_snapshot_of_the_manifest_carries_its_metadata() -> None:
    async def scenario(servers: Servers) -> None:
        manifest = f"{D}/server/manifests/rancher/k3s-etcd-snapshot-extra-metadata.yaml"
        servers.write(servers["s2"], manifest, json.dumps({"data": {"owner": "me"}}))
        await servers.run("s1", *k3s("etcd-snapshot", "save"))
        [obj] = await objects(servers)
        assert obj["spec"]["metadata"] == {"owner": "me"}

    run(scenario)


def test_snapshots_are_values() -> None:
    async def scenario(servers: Servers) -> None:
        snapshot = keep(servers)
        assert replace(snapshot, damage="truncated").size < snapshot.size
        assert replace(snapshot, compressed=True).size < snapshot.size

    run(scenario)
