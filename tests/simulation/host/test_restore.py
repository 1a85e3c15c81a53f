"""Restores, members and keys of simulated servers: the traps of a real k3s, and the judges that notice them."""

from __future__ import annotations

import asyncio

import pytest

from herder.api.capi.kinds import NODE, SECRET
from herder.api.machines.archive import CONFIG_MAP
from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from tests.simulation.host.servers import Servers, run
from tests.support.builders import new_manifest

D = "/var/lib/rancher/k3s"
PREFIX = "etcd.k3s.cattle.io"


async def save(servers: Servers, server: str = "s1") -> str:
    """Take a snapshot and return its path."""
    assert (await servers.run(server, servers.runtime, "etcd-snapshot", "save")).exit_code == 0
    name = servers[server].disk.snapshots_in(servers[server].disk.layout.snapshots)[-1].name
    return f"{servers[server].disk.layout.snapshots}/{name}"


async def restore(servers: Servers, path: str) -> None:
    await servers.stop_all()
    arguments = ("server", "--cluster-reset", f"--cluster-reset-restore-path={path}")
    finished = await servers.run("s1", servers.runtime, *arguments)
    assert finished.exit_code == 0, finished
    unit = "k3s" if servers.runtime == "k3s" else "rke2-server"
    assert (await servers.run("s1", "systemctl", "start", unit)).exit_code == 0
    await servers.until(lambda: is_loaded(servers))


async def is_loaded(servers: Servers) -> bool:
    return servers.cluster.is_loaded


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["k3s", "rke2"])
def test_a_restore_brings_back_the_data_of_its_snapshot(runtime: str) -> None:
    async def scenario(servers: Servers) -> None:
        await servers.write_data("before")
        path = await save(servers)
        await servers.write_data("after")
        await restore(servers, path)
        assert await servers.has_data("before")
        assert not await servers.has_data("after")
        assert servers.judge.missing_after_restore(servers.cluster.freeze()) == []
        servers.judge.check()
        await servers.client.delete(CONFIG_MAP.resource, "before", namespace="default")
        [missing] = servers.judge.missing_after_restore(servers.cluster.freeze())
        assert missing.endswith("default/before"), "the judge notices lost data"

    run(scenario, runtime=runtime)


def test_servers_join_again_without_their_old_data() -> None:
    async def scenario(servers: Servers) -> None:
        path = await save(servers)
        await restore(servers, path)
        for name, removed in (("s2", f"{D}/server/db/etcd"), ("s3", f"{D}/server/db")):
            await servers.run(name, "rm", "-rf", removed)
            assert (await servers.run(name, "systemctl", "start", "k3s")).exit_code == 0
        assert sorted(servers.cluster.members) == ["s1", "s2", "s3"]
        assert servers.cluster.has_quorum
        servers.judge.check()

    run(scenario)


def test_a_server_with_old_data_is_fenced() -> None:
    async def scenario(servers: Servers) -> None:
        await restore(servers, await save(servers))
        finished = await servers.run("s2", "systemctl", "start", "k3s", timeout=3600)
        assert "did not end" in finished.error
        assert servers["s2"].service.state == "activating"
        assert list(servers.cluster.members) == ["s1"]
        servers.judge.check()

    run(scenario)


async def start_with_old_data(servers: Servers) -> None:
    await asyncio.gather(*(servers.run(name, "systemctl", "start", "k3s", timeout=600) for name in ("s2", "s3")))


def test_a_quorum_of_fenced_members_serves_the_old_data_and_is_noticed() -> None:
    async def scenario(servers: Servers) -> None:
        await restore(servers, await save(servers))
        await start_with_old_data(servers)
        assert any("a fenced member never rejoins" in each for each in servers.judge.violations)

    run(scenario)


def test_a_restored_server_that_starts_beside_a_quorum_of_the_old_cluster_is_noticed() -> None:
    """The others may continue with the old data until it starts: nothing serves the restored data before."""

    async def scenario(servers: Servers) -> None:
        path = await save(servers)
        await servers.write_data("after")
        await servers.stop_all()
        arguments = ("server", "--cluster-reset", f"--cluster-reset-restore-path={path}")
        assert (await servers.run("s1", "k3s", *arguments)).exit_code == 0
        await start_with_old_data(servers)
        await servers.until(lambda: is_loaded(servers))
        servers.judge.check()
        assert await servers.has_data("after")
        await servers.run("s1", "systemctl", "start", "k3s", timeout=600)
        assert any("never two clusters" in each for each in servers.judge.violations)

    run(scenario)


def test_a_restore_beside_running_members_is_noticed() -> None:
    async def scenario(servers: Servers) -> None:
        path = await save(servers)
        await servers.run("s1", "k3s-killall.sh")
        arguments = ("server", "--cluster-reset", f"--cluster-reset-restore-path={path}")
        assert (await servers.run("s1", "k3s", *arguments)).exit_code == 0
        assert any("never two clusters" in each for each in servers.judge.violations)

    run(scenario)


def test_a_service_without_data_makes_a_new_empty_cluster() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.write_data("before")
        await servers.stop_all()
        await servers.run("s1", "rm", "-rf", f"{D}/server/db/etcd")
        assert (await servers.run("s1", "systemctl", "start", "k3s")).exit_code == 0
        await servers.until(lambda: is_loaded(servers))
        assert not await servers.has_data("before")
        await servers.until(lambda: has_nodes(servers, {"s1"}))
        servers["w1"].service.stop(by_plan=False)
        servers["w1"].service.start()  # a kubelet registers its Node only when it starts
        await servers.until(lambda: has_nodes(servers, {"s1", "w1"}))

    run(scenario)


async def has_nodes(servers: Servers, names: set[str]) -> bool:
    return {each["metadata"]["name"] for each in (await servers.client.list(NODE.resource)).items} == names


def test_a_stop_below_quorum_is_noticed_unless_a_restore_is_requested() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.run("s1", "systemctl", "stop", "k3s")
        await servers.run("s2", "systemctl", "stop", "k3s")
        servers.judge.check()
        for name in ("s1", "s2"):
            servers[name].service.start()
        await asyncio.sleep(30)
        servers.judge.is_restoring = lambda: False
        await servers.run("s1", "systemctl", "stop", "k3s")
        servers.judge.check()
        await servers.run("s2", "systemctl", "stop", "k3s")
        assert any("never below quorum" in each for each in servers.judge.violations)

    run(scenario)


def test_a_snapshot_brings_its_keys_back() -> None:
    async def scenario(servers: Servers) -> None:
        path = await save(servers)
        assert (await servers.run("s1", "k3s", "secrets-encrypt", "prepare")).exit_code == 0
        assert servers["s1"].disk.encryption.stage == "prepare"  # type: ignore[union-attr]
        await restore(servers, path)
        status = (await servers.run("s1", "k3s", "secrets-encrypt", "status")).stdout.decode()
        assert "Current Rotation Stage: start" in status
        assert "aescbckey-" not in status

    run(scenario)


# --- keys -------------------------------------------------------------------------------------------------------------


async def restart(servers: Servers, *names: str) -> None:
    for name in names:
        assert (await servers.run(name, "systemctl", "restart", "k3s")).exit_code == 0


async def read_secrets(servers: Servers) -> list[str]:
    """The errors of reading a Secret through each server in turn."""
    client, errors = Client(servers.workloads.transport(servers.cluster.key)), []
    for _ in range(3):
        try:
            await client.list(SECRET.resource)
        except StatusError as error:
            errors.append(error.message)
    return errors


def test_keys_are_rotated_in_six_steps() -> None:
    async def scenario(servers: Servers) -> None:
        for step, stage in (("prepare", "prepare"), ("rotate", "rotate"), ("reencrypt", "reencrypt_finished")):
            assert (await servers.run("s1", "k3s", "secrets-encrypt", step)).exit_code == 0
            await asyncio.sleep(2)
            status = (await servers.run("s1", "k3s", "secrets-encrypt", "status")).stdout.decode()
            assert f"Current Rotation Stage: {stage}\n" in status
            assert "hash does not match between s1 and s2" in status
            assert (await servers.run("s1", "k3s", "secrets-encrypt", step)).exit_code == 1, "not before restarts"
            other = (await servers.run("s2", "k3s", "secrets-encrypt", "status")).stdout.decode()
            assert f"Current Rotation Stage: {stage}\n" not in other, "each server shows its own stage"
            assert await read_secrets(servers) == []
            await restart(servers, "s1", "s2", "s3")
            status = (await servers.run("s2", "k3s", "secrets-encrypt", "status")).stdout.decode()
            assert f"Current Rotation Stage: {stage}\n" in status
            assert "All hashes match" in status
            assert await read_secrets(servers) == []
        assert status.count("AES-CBC") == 1

    run(scenario)


def test_other_servers_cannot_read_secrets_after_rotate_keys_until_they_restart() -> None:
    async def scenario(servers: Servers) -> None:
        secret = new_manifest(SECRET, "before", "default")
        await servers.client.create(SECRET.resource, secret, namespace="default")
        finished = await servers.run("s1", "k3s", "secrets-encrypt", "rotate-keys")
        assert finished.stdout == b"keys rotated, reencryption finished\n"
        assert [servers[name].reads_secrets for name in ("s1", "s2", "s3")] == [True, False, False]
        errors = await read_secrets(servers)
        assert len(errors) == 2
        assert "no matching key was found for the provided AES transformer" in errors[0]
        assert (await servers.run("s1", "k3s", "secrets-encrypt", "rotate-keys")).exit_code == 1
        await restart(servers, "s2", "s3")
        assert await read_secrets(servers) == []

    run(scenario)


# --- members ----------------------------------------------------------------------------------------------------------


async def remove(servers: Servers, name: str) -> None:
    patch = {"metadata": {"annotations": {f"{PREFIX}/remove": "true"}}}
    await servers.client.patch(NODE.resource, name, patch)
    await asyncio.sleep(5)


def test_a_removed_member_joins_again_and_the_next_removal_is_swallowed() -> None:
    async def scenario(servers: Servers) -> None:
        before = await servers.annotation("s3", f"{PREFIX}/node-name")
        await remove(servers, "s3")
        assert "s3" not in servers.cluster.members
        assert await servers.annotation("s3", f"{PREFIX}/removed-node-name") == before
        assert await servers.annotation("s3", f"{PREFIX}/remove") is None
        assert await servers.annotation("s3", f"{PREFIX}/node-name") is None
        assert f"{D}/server/db/etcd/tombstone" in servers["s3"].disk.files
        assert await voter(servers, "s3") == ("False", "NotAMember")
        assert (await servers.run("s3", "systemctl", "restart", "k3s")).exit_code == 0
        await asyncio.sleep(5)
        assert "s3" in servers.cluster.members
        assert await voter(servers, "s3") == ("True", "MemberNotLearner")
        assert [path for path in servers["s3"].disk.files if "/etcd-backup-" in path]
        assert await servers.annotation("s3", f"{PREFIX}/node-name") != before
        assert await servers.annotation("s3", f"{PREFIX}/removed-node-name") == before
        await remove(servers, "s3")
        assert "s3" in servers.cluster.members, "swallowed"
        assert await servers.annotation("s3", f"{PREFIX}/remove") is None
        assert await servers.annotation("s3", f"{PREFIX}/removed-node-name") is None
        await remove(servers, "s3")
        assert "s3" not in servers.cluster.members

    run(scenario)


async def voter(servers: Servers, name: str) -> tuple[str, str]:
    conditions = (await servers.node(name))["status"]["conditions"]
    [found] = [each for each in conditions if each["type"] == "EtcdIsVoter"]
    return found["status"], found["reason"]


def test_a_deleted_node_takes_its_member_with_it_and_comes_back_after_a_restart() -> None:
    async def scenario(servers: Servers) -> None:
        await servers.client.delete(NODE.resource, "s2")
        await asyncio.sleep(45)
        assert sorted(servers.cluster.members) == ["s1", "s3"]
        assert not await has_nodes(servers, {"s1", "s2", "s3", "w1"})
        assert (await servers.run("s2", "systemctl", "restart", "k3s")).exit_code == 0
        await servers.until(lambda: has_nodes(servers, {"s1", "s2", "s3", "w1"}))
        assert sorted(servers.cluster.members) == ["s1", "s2", "s3"]

    run(scenario)


def test_a_removed_server_without_another_to_join_does_not_start() -> None:
    async def scenario(servers: Servers) -> None:
        await remove(servers, "s1")
        finished = await servers.run("s1", "systemctl", "restart", "k3s")
        assert finished.exit_code == 1
        assert b"tombstone file has been detected but --server is empty" in finished.stderr
        servers.configure(servers["s1"], server="s2")
        assert (await servers.run("s1", "systemctl", "restart", "k3s")).exit_code == 0
        assert "s1" in servers.cluster.members

    run(scenario)


def test_the_last_member_stays() -> None:
    async def scenario(servers: Servers) -> None:
        await remove(servers, "s1")
        assert "s1" in servers.cluster.members
        assert await servers.annotation("s1", f"{PREFIX}/remove") is None

    run(scenario, servers=1)


# --- all etcd machines are lost ---------------------------------------------------------------------------------------


def test_a_snapshot_in_s3_survives_all_machines() -> None:
    s3 = {
        "etcd-s3": True,
        "etcd-s3-endpoint": "s3.sim:9000",
        "etcd-s3-bucket": "snaps",
        "etcd-s3-access-key": "access",
        "etcd-s3-secret-key": "secret",
    }

    async def scenario(servers: Servers) -> None:
        servers.context.s3.buckets["snaps"] = {}
        await servers.write_data("before")
        assert (await servers.run("s1", "k3s", "etcd-snapshot", "save")).exit_code == 0
        [key] = servers.context.s3.buckets["snaps"]
        for name in ("s1", "s2", "s3"):
            servers[name].power_off()
            servers.cluster.leave(servers.nodes.pop(name))
        new = servers.new_machine("new")
        servers.configure(new)
        await servers.install(new, INSTALL_K3S_SKIP_START="true")
        assert new.service.state == "inactive"
        servers.context.s3.truncates = True
        failed = await servers.run("new", "k3s", "server", "--cluster-reset", f"--cluster-reset-restore-path={key}")
        assert failed.exit_code == 1
        servers.context.s3.truncates = False
        done = await servers.run("new", "k3s", "server", "--cluster-reset", f"--cluster-reset-restore-path={key}")
        assert done.exit_code == 0, done
        await servers.install(new)
        await servers.until(lambda: servers.has_data("before"))
        servers.judge.check()

    run(scenario, **s3)
