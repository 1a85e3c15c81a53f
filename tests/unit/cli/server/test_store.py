"""`herder store`, and scheduled backups of `herder up`, with a real S3 server."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from herder.snapshots.config import load_s3
from herder.snapshots.remote import Remote
from tests.support.cloud.s3 import SECRET_KEY, S3Server
from tests.support.embedded import Embedded
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer
from tests.unit.cli.commands import expect_failure, herder


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_config(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "s3.json"
    path.touch(0o600)
    path.write_text(json.dumps(s3.settings(folder="managers")))
    return path


@pytest.fixture(scope="module")
def stopped(s3_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that has made backups on its schedule, the last ones with a ConfigMap."""
    data = tmp_path_factory.mktemp("server") / "data"
    schedule = ("--backup-schedule", "@every 1s", "--backup-retention", "2", "--backup-s3-config", str(s3_config))
    server = Embedded(data, flags=("--capi-core=external", "--no-machines", "--no-runner", *schedule))
    with server:
        assert server.process is not None
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert SECRET_KEY.encode() not in arguments
        kubectl(server, "create", "secret", "generic", "sealed")
        kubectl(server, "create", "configmap", "kept")
        before = {each["name"] for each in backups(data)}
        eventually(lambda: len({each["name"] for each in backups(data)} - before) == 2, "backups follow the ConfigMap")
        metrics = herder_metrics(server)
        assert 'herder_store_backups_total{result="success"}' in metrics
        eventually(lambda: "BackedUp" in kubectl(server, "get", "events", "-n", "cattle-system"), "an Event says so")
    return data


def kubectl(server: Embedded, *arguments: str) -> str:
    command = [peer("kubectl"), "--kubeconfig", server.kubeconfig, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def herder_metrics(server: Embedded) -> str:
    return kubectl(server, "get", "--raw", "/metrics")


def backups(data: Path, *flags: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        herder("store", "backups", "--data-dir", data, "-o", "json", *flags).stdout
    )["backups"]
    return found


def has_config_map(data: Path) -> bool:
    with Embedded(data) as server:
        return "kept" in kubectl(server, "get", "configmaps", "-o", "name")


def copied_keys(source: Path, target: Path) -> Path:
    """A data directory on another host, with the files that are kept elsewhere."""
    target.mkdir()
    for name in ("encryption.key", "pki"):
        subprocess.run(["cp", "-a", source / name, target / name], check=True)
    return target


def test_backups_are_listed_with_hash_and_place(stopped: Path, s3_config: Path) -> None:
    found = backups(stopped, "--s3-config", s3_config)
    assert {each["location"].partition("://")[0] for each in found} == {"file", "s3"}
    assert all(len(each["sha256"]) == 64 and each["status"] == "successful" for each in found)
    assert found == sorted(found, key=lambda each: each["createdAt"], reverse=True)
    table = herder("store", "backups", "--data-dir", stopped).stdout.splitlines()
    assert table[0].split() == ["NAME", "CREATED", "REVISION", "SIZE", "STATUS", "SHA256", "LOCATION", "MESSAGE"]
    assert len(table) == 3


def test_a_backup_is_restored_by_name(stopped: Path) -> None:
    newest = backups(stopped)[0]["name"]
    output = herder("store", "restore", newest, "--data-dir", stopped).stdout
    assert "All clusters are observe-only then" in output
    assert "herder resume cluster --all --diff" in output
    assert has_config_map(stopped)


def test_a_backup_is_restored_from_s3_on_another_host(stopped: Path, s3_config: Path, tmp_path: Path) -> None:
    elsewhere = copied_keys(stopped, tmp_path / "elsewhere")
    newest = backups(elsewhere, "--s3-config", s3_config)[0]["name"]
    herder("store", "restore", newest, "--data-dir", elsewhere, "--s3-config", s3_config)
    assert has_config_map(elsewhere)


def replace_in_bucket(s3_config: Path, data: Path, scratch: Path) -> tuple[str, str]:
    """As someone who can write to the bucket: the newest backup is another one now, with metadata that fit it.

    Returns its name and its hash."""
    newest = backups(data, "--s3-config", s3_config)[0]
    remote = Remote(load_s3(s3_config))
    try:
        sizes = remote.sizes()
        other = next(remote.record(name, sizes[name]) for name in sizes if name != newest["name"])
        remote.download(other.name, scratch / "other")
        forged = replace(other, name=newest["name"])
        remote.upload(forged, scratch / "other")
    finally:
        remote.close()
    return newest["name"], forged.sha256


def test_a_backup_that_was_replaced_in_s3_is_refused(
    stopped: Path, s3_config: Path, s3: S3Server, tmp_path: Path
) -> None:
    """Size and hash in the bucket prove nothing: who replaces the backup replaces them too."""
    mine = tmp_path / "s3.json"
    mine.touch(mode=0o600)
    mine.write_text(json.dumps(s3.settings(folder="replaced")))
    copy_objects(s3_config, mine, tmp_path)
    elsewhere = copied_keys(stopped, tmp_path / "elsewhere")
    name, sha256 = replace_in_bucket(mine, elsewhere, tmp_path)
    restore = ("store", "restore", name, "--data-dir", elsewhere, "--s3-config", mine)
    assert "is not authenticated by a key in" in expect_failure(*restore)
    assert not (elsewhere / "store" / "store.db").exists()
    listed = {each["name"]: each["message"] for each in backups(elsewhere, "--s3-config", mine)}
    assert listed[name] == "no manager with this encryption key has made it"
    assert set(listed.values()) == {listed[name], ""}
    assert "is not the file that was saved" in expect_failure(*restore, "--sha256", "0" * 64)
    assert "64 hexadecimal digits" in expect_failure(*restore, "--sha256", "0")
    herder(*restore, "--sha256", sha256.upper())
    herder(*restore, "--insecure-skip-verify")


def copy_objects(source: Path, target: Path, scratch: Path) -> None:
    remotes = Remote(load_s3(source)), Remote(load_s3(target))
    for name, size in remotes[0].sizes().items():
        remotes[0].download(name, scratch / "copy")
        remotes[1].upload(remotes[0].record(name, size), scratch / "copy")
    for each in remotes:
        each.close()


def test_the_hash_on_this_host_vouches_for_a_backup_in_s3(stopped: Path, s3_config: Path, tmp_path: Path) -> None:
    elsewhere = copied_keys(stopped, tmp_path / "elsewhere")
    newest = backups(stopped)[0]["name"]
    subprocess.run(["cp", "-a", stopped / "backups", elsewhere / "backups"], check=True)
    metadata = elsewhere / "backups" / ".metadata" / newest
    known = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**known, "sha256": "0" * 64}))
    restore = ("store", "restore", newest, "--data-dir", elsewhere, "--s3-config", s3_config)
    assert "is not the file that was saved" in expect_failure(*restore)


def test_a_file_with_another_hash_is_not_restored(stopped: Path, tmp_path: Path) -> None:
    elsewhere, newest = copied_keys(stopped, tmp_path / "elsewhere"), stopped / "backups" / backups(stopped)[0]["name"]
    restore = ("store", "restore", newest, "--data-dir", elsewhere)
    assert "instead of 0000" in expect_failure(*restore, "--sha256", "0" * 64)
    herder(*restore, "--sha256", backups(stopped)[0]["sha256"])


def test_a_downloaded_backup_is_restored_as_a_file(stopped: Path, tmp_path: Path) -> None:
    elsewhere, newest = copied_keys(stopped, tmp_path / "elsewhere"), stopped / "backups" / backups(stopped)[0]["name"]
    (tmp_path / "mine.gz").write_bytes(newest.read_bytes())
    herder("store", "restore", tmp_path / "mine.gz", "--data-dir", elsewhere)
    assert has_config_map(elsewhere)


def test_a_restore_without_the_key_explains_what_is_missing(stopped: Path, tmp_path: Path) -> None:
    newest = stopped / "backups" / backups(stopped)[0]["name"]
    error = expect_failure("store", "restore", newest, "--data-dir", tmp_path / "new")
    assert "needs the encryption key" in error
    assert f"restore it to {tmp_path / 'new' / 'encryption.key'} first" in error
    assert not (tmp_path / "new" / "store" / "store.db").exists()


def test_a_restore_without_the_ca_warns(stopped: Path, tmp_path: Path) -> None:
    newest, new = stopped / "backups" / backups(stopped)[0]["name"], tmp_path / "new"
    new.mkdir()
    subprocess.run(["cp", "-a", stopped / "encryption.key", new], check=True)
    result = herder("store", "restore", newest, "--data-dir", new)
    assert f"Warning: {new / 'pki'} contains no CA" in result.stderr


def test_a_damaged_backup_is_refused(stopped: Path, tmp_path: Path) -> None:
    elsewhere, name = copied_keys(stopped, tmp_path / "elsewhere"), backups(stopped)[0]["name"]
    subprocess.run(["cp", "-a", stopped / "backups", elsewhere / "backups"], check=True)
    path = elsewhere / "backups" / name
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1))
    assert "bytes instead of" in expect_failure("store", "restore", name, "--data-dir", elsewhere)
    flipped = bytearray((stopped / "backups" / name).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    assert "does not match its SHA-256" in expect_failure("store", "restore", name, "--data-dir", elsewhere)


def test_a_restore_of_a_running_server_is_refused(stopped: Path) -> None:
    with Embedded(stopped):
        assert "is in use by process" in expect_failure(
            "store", "restore", backups(stopped)[0]["name"], "--data-dir", stopped
        )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--backup-schedule", "61 * * * *"), '"61" is not a valid minute'),
        (("--backup-dir", "/tmp/x"), "need --backup-schedule"),
        (("--backup-schedule", "@daily", "--backup-s3-config", "open.json"), "other users can read it"),
    ],
    ids=["schedule", "no schedule", "mode"],
)
def test_invalid_flags_are_refused_before_the_start(flags: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "open.json").write_text("{}")
    (tmp_path / "open.json").chmod(0o644)
    flags = tuple(str(tmp_path / each) if each == "open.json" else each for each in flags)
    assert expected in expect_failure("up", "--data-dir", tmp_path / "data", *flags)
    assert not (tmp_path / "data").exists()


def test_an_unknown_backup(stopped: Path) -> None:
    error = expect_failure("store", "restore", "herder-x-1700000000.gz", "--data-dir", stopped)
    assert "no such file" in error
    assert "check --backup-dir" in error
