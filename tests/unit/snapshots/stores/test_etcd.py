"""Snapshots of a real etcd: save, check and restore, with a kill at every step of a restore."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from herder.snapshots.remote import MAX_LISTED
from herder.snapshots.stores.etcd import MIN_BUMP, bump
from tests.support.cloud.s3 import SECRET_KEY, S3Server
from tests.support.clusters.static_pods import StaticPodServer
from tests.support.snapshots import SnapshotProgram, small_disk

STEPS = ("begun", "fetched", "staging", "staged", "stopped", "replacing", "replaced", "started")


def assert_runs(server: StaticPodServer) -> None:
    server.wait(lambda: server.running() == {"etcd", "kube-apiserver"})
    server.wait(lambda: server.etcdctl("endpoint", "health", check=False)[0] == 0)
    assert not list(server.aside.glob("*")) if server.aside.exists() else True
    assert not list(server.data.glob("restore-*"))


# --- save, list, delete -----------------------------------------------------------------------------------------------


def test_a_snapshot_is_a_private_file_with_metadata(program: SnapshotProgram, server: StaticPodServer) -> None:
    server.put("a", "1")
    program.configure(metadata={"provisioning-cluster-spec": "abc", "kubernetesVersion": "v1.36.3+kubeadm1"})
    (saved,) = program.save()
    path = program.snapshots / saved["name"]
    assert saved["name"].startswith("on-demand-server-1-")
    assert saved["location"] == f"file://{path}"
    assert saved["nodeName"] == "server-1"
    assert saved["createdAt"].endswith("Z")
    assert saved["size"] == path.stat().st_size
    assert saved["revision"] == server.status()["revision"]
    assert saved["version"].startswith("3.6")
    assert (saved["status"], saved["message"]) == ("successful", "")
    assert saved["metadata"] == {"provisioning-cluster-spec": "abc", "kubernetesVersion": "v1.36.3+kubeadm1"}
    assert program("list")["snapshots"] == [saved]
    assert program("check", saved["name"])["snapshots"] == [saved]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(program.snapshots.stat().st_mode) == 0o700
    assert program.files() == {saved["name"], f".metadata/{saved['name']}"}
    program("delete", saved["name"])
    assert program.files() == set()
    program("delete", saved["name"])


def test_retention_keeps_the_newest_of_each_name(program: SnapshotProgram) -> None:
    (other,) = program.save("other")
    program.configure(retention=2)
    names = [program.save("daily")[0]["name"] for _ in range(4)]
    assert {each["name"] for each in program("list")["snapshots"]} == {other["name"], *names[2:]}


def test_retention_never_deletes_the_new_snapshot(program: SnapshotProgram) -> None:
    """The clock was ahead when the existing snapshot was saved."""
    program.configure(retention=1)
    ahead = "daily-server-1-1999999999"
    program.snapshots.mkdir(mode=0o700)
    (program.snapshots / ahead).write_text("old")
    before = int(time.time())
    (saved,) = program.save("daily")
    assert program.files() == {ahead, saved["name"], f".metadata/{saved['name']}"}
    assert before <= int(saved["name"].rpartition("-")[2]) < 1999999999


def test_remains_of_a_killed_save_are_removed(program: SnapshotProgram) -> None:
    (first,) = program.save()
    (program.snapshots / "x-server-1-1700000000.part").write_text("half")
    (program.snapshots / ".metadata" / "x-server-1-1700000000").write_text("{}")
    (second,) = program.save()
    names = {first["name"], second["name"]}
    assert program.files() == names | {f".metadata/{name}" for name in names}


def test_a_full_disk_is_named_and_leaves_nothing(program: SnapshotProgram) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small file system")
    program.snapshots.mkdir()
    with small_disk(program.snapshots):
        assert "the disk is full" in program.fail("save", "--name", "x")
        assert program.files() == set()


def test_a_download_to_a_full_disk_changes_nothing(
    program: SnapshotProgram, server: StaticPodServer, s3: S3Server
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts a small file system")
    server.put("kept", "before")
    program.configure(s3=s3.settings())
    name = program.save()[0]["name"]
    server.put("kept", "after")
    with small_disk(program.snapshots):
        assert "the disk is full" in program.fail("restore", name, "--s3")
        assert program.files() == set()
    assert server.values()["kept"] == "after"
    assert_runs(server)


def test_an_etcd_that_does_not_run_is_named(program: SnapshotProgram, server: StaticPodServer) -> None:
    program.configure(kubeadm={**server.settings(), "endpoint": "https://127.0.0.1:9"})
    assert program.fail("save", "--name", "x").startswith("etcd at https://127.0.0.1:9: is not healthy")
    assert program.files() == set()


def test_a_configuration_that_others_can_read_is_refused(program: SnapshotProgram) -> None:
    program.file.chmod(0o640)
    assert program.fail("list") == f"{program.file}: other users can read it; set its mode to 0600"


@pytest.mark.parametrize("name", ["../x-1700000000", "a/b-1700000000", ".metadata", ""])
def test_names_are_checked(program: SnapshotProgram, name: str) -> None:
    for operation in ("check", "delete", "restore"):
        assert "must consist of letters, digits" in program.fail(operation, name)


# --- check ------------------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5_000)
        file.write(b"damaged")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), "does not exist in"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "it is truncated"),
        (damage, "does not match its SHA-256; the file is corrupt"),
    ],
)
def test_a_damaged_snapshot_is_refused(program: SnapshotProgram, server: StaticPodServer, harm, message: str) -> None:  # type: ignore[no-untyped-def]
    (saved,) = program.save()
    harm(program.snapshots / saved["name"])
    before = server.starts.copy()
    for operation in ("check", "restore"):
        assert message in program.fail(operation, saved["name"])
    assert server.starts == before
    assert not (program.snapshots / ".restore").exists()
    assert_runs(server)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: os.truncate(path, path.stat().st_size // 2), "has no hash at its end; it is truncated"),
        (damage, "its content does not match its hash; the file is corrupt"),
    ],
)
def test_damage_is_found_without_metadata(program: SnapshotProgram, harm, message: str) -> None:  # type: ignore[no-untyped-def]
    (saved,) = program.save()
    shutil.rmtree(program.snapshots / ".metadata")
    assert program("check", saved["name"])["snapshots"][0]["revision"] == saved["revision"]
    harm(program.snapshots / saved["name"])
    assert message in program.fail("check", saved["name"])


# --- restore ----------------------------------------------------------------------------------------------------------


def test_a_restore_brings_the_data_back_as_a_new_cluster(program: SnapshotProgram, server: StaticPodServer) -> None:
    server.put("kept", "before")
    (saved,) = program.save()
    server.put("kept", "after")
    before = server.status()
    assert program("restore", saved["name"]) == {"restored": saved["name"]}
    assert_runs(server)
    assert server.values()["kept"] == "before"
    after = server.status()
    assert after["revision"] >= before["revision"] + MIN_BUMP
    assert after["cluster_id"] != before["cluster_id"]
    assert (list(server.data.glob("member-old-*"))[-1] / "snap" / "db").exists()
    first = after["revision"]
    program("restore", saved["name"])
    assert server.status()["revision"] > first  # a second restore assigns no revision of the first one again
    assert len(json.loads(server.etcdctl("member", "list", "-w", "json")[1])["members"]) == 1


def test_a_compressed_snapshot_can_be_restored(program: SnapshotProgram, server: StaticPodServer) -> None:
    server.put("kept", "compressed")
    program.configure(compress=True)
    (saved,) = program.save()
    assert saved["name"].endswith(".gz")
    assert saved["size"] < saved["unpackedSize"]
    server.put("kept", "after")
    program("restore", saved["name"])
    assert server.values()["kept"] == "compressed"
    assert program.files() == {saved["name"], f".metadata/{saved['name']}"}


@pytest.mark.parametrize("step", STEPS)
def test_a_restore_resumes_after_a_kill(program: SnapshotProgram, server: StaticPodServer, step: str) -> None:
    server.put("kept", f"before {step}")
    (saved,) = program.save()
    server.put("kept", f"after {step}")
    old = set(server.data.glob("member-old-*"))
    assert program.start("restore", saved["name"], kill=step).returncode == -9
    if step in STEPS[STEPS.index("staged") :]:
        assert "its restore is unfinished" in program.fail("save", "--name", "x")
        assert "its restore is unfinished" in program.fail("restore", "other-server-1-1700000000")
    program("restore", saved["name"])
    assert_runs(server)
    assert server.values()["kept"] == f"before {step}"
    assert len(set(server.data.glob("member-old-*")) - old) == 1
    assert not (program.snapshots / ".restore").exists()


@pytest.mark.parametrize("kill", ["", "undoing", "undone"])
def test_a_restore_that_fails_puts_the_old_data_back(
    program: SnapshotProgram, server: StaticPodServer, kill: str
) -> None:
    """etcd is reachable at its endpoint only: with another one, it seems not to become healthy."""
    server.put("kept", "before")
    (saved,) = program.save()
    server.put("kept", "after")
    cluster = server.status()["cluster_id"]
    program.configure(kubeadm={**server.settings(), "endpoint": "https://127.0.0.1:9", "timeout": 1})
    done = program.start("restore", saved["name"], kill=kill)
    program.configure(kubeadm=server.settings())
    if kill:
        assert done.returncode == -9
        assert "its restore is unfinished" in program.fail("save", "--name", "x") if kill == "undoing" else True
        program("restore", saved["name"])  # completes the undo, and restores
        assert server.values()["kept"] == "before"
    else:
        assert "is not healthy after the restore" in done.stderr.splitlines()[0]
        assert_runs(server)
        assert server.values()["kept"] == "after"
        assert server.status()["cluster_id"] == cluster
    assert not (program.snapshots / ".restore").exists()


def test_pods_that_do_not_stop_are_named(program: SnapshotProgram, server: StaticPodServer) -> None:
    """Another process with the same flags stands for a pod that the kubelet does not stop."""
    server.put("kept", "now")
    (saved,) = program.save()
    program.configure(kubeadm={**server.settings(), "timeout": 3})
    command = ["kube-apiserver", "-c", "import time; time.sleep(600)", f"--etcd-servers={server.endpoint}"]
    stuck = subprocess.Popen(command, executable=sys.executable)
    try:
        assert "kube-apiserver: still runs 3 s after its manifest was removed" in program.fail("restore", saved["name"])
    finally:
        stuck.kill()
        stuck.wait()
    assert_runs(server)
    assert server.values()["kept"] == "now"


def test_a_restore_onto_a_new_disk_needs_no_old_data(program: SnapshotProgram, server: StaticPodServer) -> None:
    server.put("kept", "on the old disk")
    (saved,) = program.save()
    server.aside.mkdir(exist_ok=True)
    for name in ("kube-apiserver.yaml", "etcd.yaml"):
        (server.manifests / name).rename(server.aside / name)
    server.wait(lambda: not server.running())
    shutil.rmtree(server.data)
    program("restore", saved["name"])
    assert_runs(server)
    assert server.values()["kept"] == "on the old disk"


def test_bumped_revisions_never_decrease() -> None:
    assert bump(5, 1_800_000_000) + 5 < bump(3, 1_800_000_001) + 3
    assert bump(10**14, 1_800_000_000) == MIN_BUMP


# --- S3 ---------------------------------------------------------------------------------------------------------------


def test_a_snapshot_in_s3_survives_the_node(program: SnapshotProgram, server: StaticPodServer, s3: S3Server) -> None:
    server.put("kept", "in s3")
    program.configure(s3=s3.settings(), metadata={"owner": "me"})
    local, remote = program.save()
    name = local["name"]
    assert remote == {**local, "location": f"s3://snaps/farm/one/{name}"}
    assert s3.keys() == [f"farm/one/.metadata/{name}", f"farm/one/{name}"]
    assert program("list")["snapshots"] == [local, remote]
    shutil.rmtree(program.snapshots)
    server.put("kept", "after")
    assert program("check", name, "--s3")["snapshots"] == [remote]
    program("restore", name, "--s3")
    assert server.values()["kept"] == "in s3"
    assert program.files() == set()
    program("delete", name, "--s3")
    assert s3.keys() == []


def test_a_restore_from_s3_resumes_while_s3_is_away(
    program: SnapshotProgram, server: StaticPodServer, s3: S3Server
) -> None:
    server.put("kept", "in s3")
    program.configure(s3=s3.settings())
    name = program.save()[0]["name"]
    server.put("kept", "after")
    assert program.start("restore", name, "--s3", kill="stopped").returncode == -9
    program.configure(s3=s3.settings(endpoint="127.0.0.1:9"))
    program("restore", name, "--s3")
    assert server.values()["kept"] == "in s3"


def test_retention_in_s3_is_its_own(program: SnapshotProgram, s3: S3Server) -> None:
    program.configure(s3=s3.settings(retention=2), retention=1)
    names = [program.save("daily")[0]["name"] for _ in range(3)]
    found = program("list")["snapshots"]
    assert [each["name"] for each in found] == [names[2], *names[1:]]
    assert len(s3.keys()) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secretKey": "wrong"}, "access denied (SignatureDoesNotMatch)"),
        ({"bucket": "nosuch"}, "the bucket does not exist"),
        ({"endpointCA": ""}, "signed by an unknown CA"),
        ({"endpoint": "127.0.0.1:9"}, "nothing listens there"),
    ],
)
def test_a_save_that_cannot_be_uploaded_leaves_nothing(
    program: SnapshotProgram, s3: S3Server, changes: dict[str, str], message: str
) -> None:
    program.configure(s3=s3.settings(**changes))
    line = program.fail("save", "--name", "x")
    assert message in line
    assert SECRET_KEY not in line
    assert program.files() == set()
    assert s3.keys() == []


def test_a_truncated_object_is_not_restored(program: SnapshotProgram, server: StaticPodServer, s3: S3Server) -> None:
    server.put("kept", "before")
    program.configure(s3=s3.settings())
    name = program.save()[0]["name"]
    server.put("kept", "after")
    stored = s3.file(f"farm/one/{name}")
    os.truncate(stored, stored.stat().st_size - 4_096)
    for operation in ("check", "restore"):
        assert "it is truncated" in program.fail(operation, name, "--s3")
    assert [each["status"] for each in program("list")["snapshots"]] == ["successful", "failed"]
    assert server.values()["kept"] == "after"
    assert_runs(server)


def replace_object(s3: S3Server, name: str, by: str) -> None:
    """Put another snapshot in the place of one, with valid metadata, as who can write to the bucket may."""
    s3.file(f"farm/one/{name}").write_bytes(s3.file(f"farm/one/{by}").read_bytes())
    forged = json.loads(s3.file(f"farm/one/.metadata/{by}").read_bytes()) | {"name": name}
    s3.file(f"farm/one/.metadata/{name}").write_text(json.dumps(forged))


def test_a_replaced_object_is_neither_listed_as_the_snapshot_nor_restored(
    program: SnapshotProgram, server: StaticPodServer, s3: S3Server
) -> None:
    server.put("kept", "saved")
    program.configure(s3=s3.settings())
    saved = program.save()[0]
    server.put("kept", "forged")
    other = program.save()[0]
    server.put("kept", "after")
    replace_object(s3, saved["name"], by=other["name"])
    found = {each["location"]: each for each in program("list")["snapshots"]}
    listed = found[f"s3://snaps/farm/one/{saved['name']}"]
    assert (listed["sha256"], listed["status"]) == (saved["sha256"], "failed")
    assert "is not the file that this node saved" in listed["message"]
    program("check", saved["name"], "--s3")  # nothing in the bucket shows it
    expected = f"--sha256={saved['sha256']}"
    for operation in ("check", "restore"):
        assert "is not the file that was saved" in program.fail(operation, saved["name"], "--s3", expected)
    assert server.values()["kept"] == "after"
    assert_runs(server)
    program("restore", saved["name"], expected)
    assert server.values()["kept"] == "saved"


def test_objects_that_others_add_to_the_bucket_hide_no_snapshot(
    program: SnapshotProgram, server: StaticPodServer, s3: S3Server
) -> None:
    program.configure(s3=s3.settings())
    local, remote = program.save()
    folder = s3.file("farm/one")
    for number in range(250):
        (folder / f"x-server-1-{1_000_000_000 + number}").write_bytes(b"x")
    later = f"y-server-1-{int(time.time()) + 60}"
    (folder / later).write_bytes(b"y")
    (folder / ".metadata" / later).write_bytes(b"[" * (1 << 20))
    (folder / "z-server-1-999999999999").write_bytes(b"z")
    done = program.start("list")
    found = json.loads(done.stdout)["snapshots"]
    assert found[0] == local
    assert remote in found
    assert len(found) == 1 + MAX_LISTED
    assert len(done.stdout) < 1 << 20
    assert not [each for each in found if each["name"].endswith("-999999999999")]
    (folder / "last-server-1-9999999999").write_bytes(b"x")
    assert {each["status"] for each in program.save("last")} == {"successful"}


def test_s3_must_be_configured(program: SnapshotProgram) -> None:
    assert program.fail("restore", "x-server-1-1700000000", "--s3") == "s3: is not set in the configuration"


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_stopped_server_stays_stopped_until_it_is_started(program: SnapshotProgram, server: StaticPodServer) -> None:
    server.put("kept", "data")
    program("stop")
    program("stop")
    assert server.running() == set()
    assert {each.stem for each in server.aside.iterdir()} == {"etcd", "kube-apiserver"}
    program("start")
    program("start")
    assert_runs(server)
    assert server.values()["kept"] == "data"


def test_a_start_puts_the_data_of_before_an_interrupted_restore_back(
    program: SnapshotProgram, server: StaticPodServer
) -> None:
    server.put("kept", "before")
    (saved,) = program.save()
    server.put("kept", "after")
    for step in ("stopped", "replacing", "replaced"):
        program("stop")
        assert program.start("restore", saved["name"], kill=step).returncode == -9
        program("start")
        assert_runs(server)
        assert server.values()["kept"] == "after"


def test_a_dropped_server_has_neither_data_nor_an_old_manifest(
    program: SnapshotProgram, server: StaticPodServer, tmp_path: Path
) -> None:
    (saved,) = program.save()
    manifest = (server.manifests / "etcd.yaml").read_bytes()
    program("drop")
    program("drop")
    assert server.running() == set()
    assert not (server.data / "member").exists()
    assert [each.stem for each in server.aside.iterdir()] == ["kube-apiserver"]
    (server.manifests / "etcd.yaml").write_bytes(manifest)  # as kubeadm creates it
    program("start")
    assert_runs(server)
    program("restore", saved["name"])


def test_a_new_server_gets_its_data_before_its_manifests(
    program: SnapshotProgram, server: StaticPodServer, tmp_path: Path
) -> None:
    server.put("kept", "data")
    (saved,) = program.save()
    new = {name: str(tmp_path / "new" / name) for name in ("dataDirectory", "manifests", "stoppedManifests")}
    program.configure(kubeadm={**server.settings(), **new})
    for _ in range(2):  # the first server that it became was lost again
        program("restore", saved["name"])
        assert (tmp_path / "new" / "dataDirectory" / "member").is_dir()
    assert not (tmp_path / "new" / "manifests").exists()


def test_only_scheduled_snapshots_are_counted_and_can_be_disabled(program: SnapshotProgram) -> None:
    program.configure(retention=1, disabled=True)
    assert "snapshots are disabled" in program.fail("save", "--name", "daily")
    names = {program.save()[0]["name"] for _ in range(2)}
    assert {each["name"] for each in program("list")["snapshots"]} == names


def test_metadata_is_read_from_a_private_file(program: SnapshotProgram, tmp_path: Path) -> None:
    file = tmp_path / "metadata.json"
    file.write_text('{"kubernetesVersion": "v1"}')
    assert "other users can read it" in program.fail("save", "--name", "x", "--metadata", str(file))
    file.chmod(0o600)
    (saved,) = program("save", "--name", "x", "--metadata", str(file))["snapshots"]
    assert saved["metadata"] == {"kubernetesVersion": "v1"}
