"""The snapshot program of kubeadm and embedded servers, by its contract."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from herder.agent.core.events import Finished
from tests.simulation.host.servers import Servers, run

CONFIG = "/etc/rancher/snapshots.json"
AUTHORITY = "-----BEGIN CERTIFICATE-----\nsimulated\n-----END CERTIFICATE-----\n"
S3 = {"endpoint": "s3.sim:9000", "bucket": "snaps", "folder": "farm", "accessKey": "access", "secretKey": "secret"}
DISTRIBUTIONS = pytest.mark.parametrize("options", [{"runtime": "kubeadm"}, {"runtime": "herder", "servers": 1}])


def configure(servers: Servers, server: str = "s1", **fields: Any) -> None:
    config = {"directory": "/var/lib/snapshots", "node": server, "retention": 2, "metadata": {"owner": "me"}, **fields}
    servers.write(servers[server], CONFIG, json.dumps(config))


async def program(servers: Servers, command: str, *arguments: str, on: str = "s1") -> Finished:
    return await servers.run(on, "herder-snapshots", command, "--config", CONFIG, *arguments)


async def save(servers: Servers, name: str = "daily") -> dict[str, Any]:
    await asyncio.sleep(2)  # names differ by the second
    finished = await program(servers, "save", "--name", name)
    assert finished.exit_code == 0, finished
    found: dict[str, Any] = json.loads(finished.stdout)["snapshots"][-1]
    return found


@DISTRIBUTIONS
def test_a_restore_brings_back_the_data_of_its_snapshot(options: dict[str, Any]) -> None:
    async def scenario(servers: Servers) -> None:
        configure(servers)
        await servers.write_data("before")
        saved = await save(servers)
        assert saved["location"] == f"file:///var/lib/snapshots/{saved['name']}"
        assert saved["status"] == "successful"
        assert saved["metadata"] == {"owner": "me"}
        await servers.write_data("after")
        if servers.runtime == "herder":
            assert b"is in use" in (await program(servers, "restore", saved["name"])).stderr
        for name, node in servers.nodes.items():
            if not node.is_worker and (name != "s1" or servers.runtime == "herder"):
                node.service.stop(by_plan=True)
        assert (await program(servers, "restore", saved["name"])).exit_code == 0
        servers["s1"].service.start()
        await servers.until(lambda: servers.has_data("before"))
        assert not await servers.has_data("after")
        assert list(servers.cluster.members) == ["s1"]
        assert any("-old-" in path for path in servers["s1"].disk.files), "the old data stays beside the new"
        servers.judge.check()

    run(scenario, **options)


@DISTRIBUTIONS
def test_snapshots_are_listed_and_pruned(options: dict[str, Any]) -> None:
    async def scenario(servers: Servers) -> None:
        configure(servers, s3=S3)
        servers.context.s3.buckets["snaps"] = {}
        names = [(await save(servers))["name"] for _ in range(3)]
        assert len(set(names)) == 3
        listed = json.loads((await program(servers, "list")).stdout)["snapshots"]
        local = [each["name"] for each in listed if each["location"].startswith("file://")]
        assert local == names[1:], "retention"
        assert f"s3://snaps/farm/{names[2]}" in [each["location"] for each in listed]
        await program(servers, "delete", names[2])
        assert (await program(servers, "check", names[2])).exit_code == 1
        assert (await program(servers, "check", names[2], "--s3")).exit_code == 0
        await program(servers, "delete", names[2], "--s3")
        assert f"farm/{names[2]}" not in servers.context.s3.buckets["snaps"]

    run(scenario, **options)


def test_errors_of_s3_are_the_first_line() -> None:
    async def first_line(servers: Servers, *arguments: str) -> str:
        finished = await program(servers, *(arguments or ("save", "--name", "daily")))
        assert finished.exit_code == 1
        assert servers["s1"].disk.snapshots_in("/var/lib/snapshots") == [], "as it was"
        return finished.stderr.decode().splitlines()[0]

    async def scenario(servers: Servers) -> None:
        s3 = servers.context.s3
        configure(servers, s3=S3)
        assert "bucket snaps does not exist" in await first_line(servers)
        s3.buckets["snaps"] = {}
        s3.refuses = True
        assert "connection refused" in await first_line(servers)
        s3.refuses, s3.authority = False, AUTHORITY
        assert "signed by unknown authority" in await first_line(servers)
        configure(servers, s3={**S3, "endpointCA": AUTHORITY, "secretKey": "wrong"})
        assert "Access Denied" in await first_line(servers)
        configure(servers, s3={**S3, "endpointCA": AUTHORITY})
        servers["s1"].disk.full_directories.add("/var/lib/snapshots")
        assert "no space left on device" in await first_line(servers)
        servers["s1"].disk.full_directories.clear()
        saved = await save(servers)
        await program(servers, "delete", saved["name"])
        s3.truncates = True
        assert "is truncated" in await first_line(servers, "check", saved["name"], "--s3")
        assert "is truncated" in await first_line(servers, "restore", saved["name"], "--s3")
        assert servers["s1"].running

    run(scenario, runtime="kubeadm", servers=1)


def test_a_restore_that_was_killed_can_be_repeated() -> None:
    async def scenario(servers: Servers) -> None:
        configure(servers)
        await servers.write_data("before")
        saved = await save(servers)
        for seconds in (1, 2, 4, 6):
            arguments = ("restore", "--config", CONFIG, saved["name"])
            await servers.run("s1", "python3", "-m", "herder.snapshots", *arguments, timeout=seconds)
        assert (await program(servers, "restore", saved["name"])).exit_code == 0
        await servers.until(lambda: servers.has_data("before"))

    run(scenario, runtime="kubeadm", servers=1)


def test_other_machines_do_not_have_the_program() -> None:
    async def scenario(servers: Servers) -> None:
        configure(servers)
        assert (await program(servers, "list")).exit_code == 127
        module = await servers.run("s1", "python3", "-m", "herder.snapshots", "list", "--config", CONFIG)
        assert module.exit_code == 1

    run(scenario, servers=1)


def test_a_kubeadm_server_without_data_makes_a_new_empty_cluster() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.write_data("before")
        servers["s1"].service.stop(by_plan=True)
        await servers.run("s1", "rm", "-rf", "/var/lib/etcd")
        servers["s1"].service.start()
        await servers.until(lambda: _is_empty(servers))

    run(scenario, runtime="kubeadm", servers=1)


async def _is_empty(servers: Servers) -> bool:
    return servers.cluster.is_loaded and not await servers.has_data("before")
