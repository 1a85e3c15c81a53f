"""The simulated k3s prints, returns and does what a real k3s v1.36.3 did: exit codes, lines and effects.

Each row names a command, its exit code, what it prints on stdout and stderr, and its effect. `D` is the data directory.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from herder.sim.host.certificates import AUTHORITIES
from herder.sim.host.disk import Snapshot
from herder.sim.k3s.snapshot_objects import SNAPSHOT_FILES
from tests.simulation.host.servers import Servers, run

D = "/var/lib/rancher/k3s"
SNAPSHOTS = f"{D}/server/db/snapshots"
START_ERROR = "Error: starting kubernetes: failed to start cluster: start managed database"
Effect = Callable[[Servers], Awaitable[None]]
S3 = ("--etcd-s3", "--etcd-s3-bucket=snaps", "--etcd-s3-folder=farm")
KEYS = ("--etcd-s3-access-key=access", "--etcd-s3-secret-key=secret")
HERE = "--etcd-s3-endpoint=s3.sim:9000"
S3_ERROR = "Error: see server log for details: failed to initialize S3 client: "


async def nothing(_servers: Servers) -> None:
    """No effect to check, or nothing to prepare."""


@dataclass
class Row:
    """`out` and `err` are regular expressions for the whole output; lines about unknown flags are left out."""

    argv: tuple[str, ...]
    code: int = 0
    out: str = ""
    err: str = ""
    on: str = "s1"
    before: Effect = nothing
    effect: Effect = nothing
    options: dict[str, Any] = field(default_factory=dict)


def line(level: str, message: str) -> str:
    """The regular expression of a log line; `…` matches anything."""
    quoted = json.dumps(message, ensure_ascii=False)
    return re.escape(f"level={level} msg={quoted}\n").replace("…", ".*")


def fatal(message: str) -> str:
    return line("fatal", message)


def k3s(*arguments: str) -> tuple[str, ...]:
    return ("k3s", *arguments)


# --- preparations and effects -----------------------------------------------------------------------------------------


async def objects(servers: Servers) -> list[dict[str, Any]]:
    await asyncio.sleep(5)
    return (await servers.client.list(SNAPSHOT_FILES)).items


def names(servers: Servers, server: str = "s1") -> list[str]:
    return [each.name for each in servers[server].disk.snapshots_in(SNAPSHOTS)]


def keep(servers: Servers, **changes: Any) -> Snapshot:
    """Put a snapshot of the current content at /srv/keep."""
    etcd = servers["s1"].disk.etcd
    assert etcd is not None
    snapshot = Snapshot("keep", "s1", 1, servers.cluster.freeze(), etcd.cluster.bootstrap, **changes)
    servers["s1"].disk.files["/srv/keep"] = snapshot
    return snapshot


async def three_snapshots(servers: Servers) -> None:
    for name in ("p", "p", "q"):
        assert (await servers.run("s1", *k3s("etcd-snapshot", "save", "--name", name))).exit_code == 0
        await asyncio.sleep(10)


async def is_saved(servers: Servers) -> None:
    [name] = names(servers)
    [obj] = await objects(servers)
    assert obj["spec"]["location"] == f"file://{SNAPSHOTS}/{name}"
    assert re.fullmatch(f"local-{name}-[0-9a-f]{{6}}", obj["metadata"]["name"])
    assert obj["metadata"]["labels"] == {"etcd.k3s.cattle.io/snapshot-storage-node": "s1"}
    assert (obj["spec"]["nodeName"], obj["spec"]["snapshotName"]) == ("s1", name)
    assert obj["status"]["readyToUse"] is True


def failed_with(message: str) -> Effect:
    async def check(servers: Servers) -> None:
        assert names(servers) == []
        [obj] = await objects(servers)
        assert obj["spec"]["location"] == ""
        assert obj["status"]["readyToUse"] is False
        assert re.fullmatch(message, obj["status"]["error"]["message"])

    return check


async def full_disk(servers: Servers) -> None:
    servers["s1"].disk.directories.add("/mnt/small")
    servers["s1"].disk.full_directories.add("/mnt/small")


async def no_snapshot(servers: Servers) -> None:
    assert names(servers) == []


async def bucket(servers: Servers) -> None:
    servers.context.s3.buckets["snaps"] = {}


async def unknown_ca(servers: Servers) -> None:
    servers.context.s3.authority = "-----BEGIN CERTIFICATE-----"


async def in_bucket(servers: Servers) -> None:
    [key] = servers.context.s3.buckets["snaps"]
    assert key.startswith("farm/on-demand-s1-")
    assert len(names(servers)) == 1


async def stopped(servers: Servers) -> None:
    await servers.run("s1", "systemctl", "stop", "k3s")


def all_stopped(**damage: Any) -> Effect:
    async def prepare(servers: Servers) -> None:
        await servers.write_data("before")
        keep(servers, **damage)
        await servers.write_data("after")
        await servers.stop_all()

    return prepare


async def database_untouched(servers: Servers) -> None:
    assert servers["s1"].disk.etcd is not None
    assert not [path for path in servers["s1"].disk.files if "etcd-old-" in path]


async def database_moved(servers: Servers) -> None:
    assert servers["s1"].disk.etcd is None
    assert len([path for path in servers["s1"].disk.files if re.search(r"/etcd-old-\d+$", path)]) == 1


async def restored(servers: Servers) -> None:
    disk = servers["s1"].disk
    assert f"{D}/server/db/reset-flag" in disk.files
    assert [path for path in disk.files if re.search(r"/server/tls-\d+/client-admin\.crt$", path)]
    assert (await servers.run("s1", "systemctl", "start", "k3s")).exit_code == 0
    await servers.until(lambda: servers.has_data("before"))
    assert not await servers.has_data("after")
    assert list(servers.cluster.members) == ["s1"]
    await asyncio.sleep(61)
    assert f"{D}/server/db/reset-flag" not in disk.files


def log_has(text: str) -> Effect:
    async def check(servers: Servers) -> None:
        assert any(re.search(text, each) for each in servers["s1"].log_lines), list(servers["s1"].log_lines)

    return check


def leaf_files(servers: Servers, server: str = "s1") -> int:
    found = [p for p in servers[server].disk.files if p.startswith((f"{D}/server/tls/", f"{D}/agent/"))]
    return len(
        [
            path
            for path in found
            if path.endswith((".crt", ".key")) and "-ca." not in path and "/tls-" not in path
            if not path.endswith("/service.key")
        ]
    )


async def authorities_kept(servers: Servers) -> None:
    etcd = servers["s1"].cluster.etcd
    assert etcd is not None
    tls = {name: servers["s1"].disk.files[f"{D}/server/tls/{name}.crt"].serial for name in AUTHORITIES}
    assert etcd.bootstrap.authorities == tls


async def certificates_gone(servers: Servers) -> None:
    assert leaf_files(servers) == 0
    old = {
        path.rpartition("/tls-")[2].partition("/")[2]: content.serial
        for path, content in servers["s1"].disk.files.items()
        if "/server/tls-" in path and path.endswith("client-admin.crt")
    }
    assert (await servers.run("s1", "systemctl", "start", "k3s")).exit_code == 0
    assert leaf_files(servers) == 38
    assert servers["s1"].disk.files[f"{D}/server/tls/client-admin.crt"].serial not in old.values()


RESTORE = k3s("server", "--cluster-reset", "--cluster-reset-restore-path=/srv/keep")
SHUTDOWN = (
    'Shutdown request received: "Managed etcd cluster membership has been reset, restart without --cluster-reset flag '
    'now. Backup and delete ${datadir}/server/db on each peer etcd server and rejoin the nodes"'
)
RESTORED = (
    line("info", f"Pre-restore etcd database moved to {D}/server/db/etcd-old-…")
    + line("info", "Starting etcd for new cluster, cluster-reset=true")
    + line("info", f"Cluster reset: backing up certificates directory to {D}/server/tls-…")
    + line("warning", "Updating bootstrap data on disk from datastore")
    + line("error", SHUTDOWN)
    + line("info", "Stopping etcd server...")
    + line("info", "etcd server stopped")
)
SAVED = line("info", "Snapshot on-demand-s1-… saved.")
REFUSED = "dial tcp 127.0.0.1:6443: connect: connection refused"

ROWS: dict[str, Row] = {
    # 0. In general
    "on an agent": Row(
        k3s("etcd-snapshot", "save"), 1, on="w1",
        err=fatal(f"Error: open {D}/server/token: no such file or directory"),
    ),
    "service stopped": Row(
        k3s("etcd-snapshot", "save"), 1, before=stopped,
        err=fatal(f'Error: failed to get CA certs: Get "https://127.0.0.1:6443/cacerts": {REFUSED}'),
    ),
    "two forms of a flag": Row(
        k3s("etcd-snapshot", "prune", "--snapshot-retention", "1"), 1, options={"etcd-snapshot-retention": 5},
        err=fatal("Error: Cannot use two forms of the same flag: etcd-snapshot-retention snapshot-retention"),
    ),
    # 1. Snapshots
    "save": Row(k3s("etcd-snapshot", "save"), err=SAVED, effect=is_saved),
    "save compressed": Row(
        k3s("etcd-snapshot", "save", "--name", "before", "--snapshot-compress"),
        err=line("info", "Snapshot before-s1-….zip saved."), effect=is_saved,
    ),
    "ls": Row(
        k3s("etcd-snapshot", "ls"), before=three_snapshots,
        out=r"Name +Location +Size +Created\n(\S+-s1-\d+ +file://" + SNAPSHOTS + r"/\S+ +\d+ +\S+Z\n){3}",
    ),
    "delete a missing one": Row(
        k3s("etcd-snapshot", "delete", "nosuch"), err=line("warning", "Snapshot nosuch not found.")
    ),
    "delete nothing": Row(k3s("etcd-snapshot", "delete"), 1, err=fatal("Error: no snapshots given for removal")),
    "prune": Row(
        k3s("etcd-snapshot", "prune", "--name", "p", "--etcd-snapshot-retention", "1"), before=three_snapshots,
        err=line("info", "Snapshot p-s1-… deleted."),
    ),
    "prune without need": Row(k3s("etcd-snapshot", "prune")),
    "save with a bad name": Row(
        k3s("etcd-snapshot", "save", "--name", "x/y"),
        effect=failed_with(r"could not open \S+/x/y-s1-\d+\.part \(.*no such file or directory\)"),
    ),
    "save on a full disk": Row(
        k3s("etcd-snapshot", "save", "--dir", "/mnt/small", "--name", "full"), before=full_disk,
        effect=failed_with(r"could not write snapshot: write /mnt/small/full-s1-\d+\.part: no space left on device"),
    ),
    "save to a missing directory": Row(
        k3s("etcd-snapshot", "save", "--dir", "/srv/snaps"), 1,
        err=fatal("Error: see server log for details: Internal error occurred: etcd-snapshot error ID …"),
        effect=log_has("failed to get etcd-snapshot-dir: stat /srv/snaps: no such file or directory"),
    ),
    # S3
    "s3, nothing listens": Row(
        k3s("etcd-snapshot", "save", *S3, *KEYS, "--etcd-s3-endpoint=HOST:9"), 1,
        err=fatal(
            f"{S3_ERROR}failed to test for existence of bucket snaps: "
            'Head "https://HOST:9/snaps/": dial tcp HOST:9: connect: connection refused'
        ),
        effect=no_snapshot,
    ),
    "s3, unknown CA": Row(
        k3s("etcd-snapshot", "save", *S3, *KEYS, HERE), 1, before=unknown_ca,
        err=fatal(f"{S3_ERROR}…tls: failed to verify certificate: x509: certificate signed by unknown authority"),
        effect=no_snapshot,
    ),
    "s3, refused credentials": Row(
        k3s("etcd-snapshot", "save", *S3, HERE), 1, before=bucket,
        err=fatal(f"{S3_ERROR}failed to test for existence of bucket snaps: Access Denied."), effect=no_snapshot,
    ),
    "s3, no bucket": Row(
        k3s("etcd-snapshot", "save", *S3, *KEYS, HERE), 1,
        err=fatal(f"{S3_ERROR}bucket snaps does not exist"), effect=no_snapshot,
    ),
    "s3, not configured": Row(
        k3s("etcd-snapshot", "save", "--etcd-s3"), 1, err=fatal(f"{S3_ERROR}s3 configuration was not set")
    ),
    "s3": Row(
        k3s("etcd-snapshot", "save", *S3, *KEYS, HERE), before=bucket, err=SAVED + SAVED, effect=in_bucket
    ),
    # 2. Certificates
    "check": Row(
        k3s("certificate", "check", "-s", "admin"),
        err=line("info", "client-admin.crt: certificate system:admin (ClientAuth) is ok, expires at …Z")
        + line("info", "client-admin.crt: certificate k3s-client-ca… (CertSign) is ok, expires at …Z"),
    ),
    "check as a table": Row(
        k3s("certificate", "check", "-s", "auth-proxy", "-o", "table"),
        out=r"\nFILENAME +SUBJECT +USAGES +EXPIRES +RESIDUAL TIME +STATUS\n[- ]+\n"
        r"client-auth-proxy\.crt   system:auth-proxy   ClientAuth   \w{3} \d+, 2027 \d+:\d+ UTC   1 year          OK\n",
    ),
    "check as JSON": Row(
        k3s("certificate", "check", "-s", "admin", "-o", "json"),
        out=r'\{"Certificates":\[\{"Filename":"client-admin\.crt","Subject":"system:admin",.*"Status":"OK"\}\]\}\n',
    ),
    "check in an unknown format": Row(
        k3s("certificate", "check", "-o", "nosuch"), 1, err=fatal("Error: invalid output format nosuch")
    ),
    "rotate-ca without a path": Row(
        k3s("certificate", "rotate-ca"), 1, err=fatal('Error: Required flag "path" not set')
    ),
    "rotate-ca of a missing directory": Row(
        k3s("certificate", "rotate-ca", "--path", "/nowhere"), out="certificates saved to datastore\n",
        err="(" + line("warning", "failed to stat …: stat /nowhere/tls/….…: no such file or directory") + "){11}",
        effect=authorities_kept,
    ),
    "services in one argument": Row(
        k3s("certificate", "rotate", "-s", "etcd,kubelet"), 1,
        err=fatal("Error: service etcd,kubelet is not recognized"),
    ),
    "rotate": Row(
        k3s("certificate", "rotate"), before=stopped, effect=certificates_gone,
        err=line("info", "Server detected, rotating agent and server certificates")
        + line("info", "Rotating dynamic listener certificate")
        + "(" + line("info", "Rotating certificates for …") + "){11}"
        + line(
            "info",
            f"Successfully backed up certificates to {D}/server/tls-…, please restart k3s server or agent to rotate "
            "certificates",
        ),
    ),
    "rotate on an agent": Row(
        k3s("certificate", "rotate"), on="w1",
        err=line("info", "Agent detected, rotating agent certificates")
        + "(" + line("info", "Rotating certificates for …") + "){3}"
        + line(
            "info",
            f"Successfully backed up certificates to {D}/agent/tls-…, please restart k3s server or agent to rotate "
            "certificates",
        ),
    ),
    # 3. Secrets encryption
    "status": Row(
        k3s("secrets-encrypt", "status"),
        out=re.escape(
            "Encryption Status: Enabled\nCurrent Rotation Stage: start\nServer Encryption Hashes: All hashes match\n\n"
            "Active  Key Type  Name\n------  --------  ----\n *      AES-CBC   aescbckey\n"
        ),
    ),
    "status as JSON": Row(
        k3s("secrets-encrypt", "status", "-o", "json"),
        out=re.escape(
            '{\n\t"stage": "start",\n\t"activekey": "AES-CBC aescbckey",\n\t"enable": true,\n\t"hashmatch": true\n}\n'
        ),
    ),
    "prepare": Row(k3s("secrets-encrypt", "prepare"), out="prepare completed successfully\n"),
    "rotate too early": Row(
        k3s("secrets-encrypt", "rotate"), 1, effect=log_has("incorrect stage: start found on node s1"),
        err=fatal("Error: see server log for details: secret-encrypt error ID …"),
    ),
    "reencrypt too early": Row(
        k3s("secrets-encrypt", "reencrypt"), 1, effect=log_has("incorrect stage: start found on node s1"),
        err=fatal("Error: see server log for details: secret-encrypt error ID …"),
    ),
    # 4. Restore
    "restore": Row(RESTORE, before=all_stopped(), err=RESTORED, effect=restored),
    "restore while the service runs": Row(
        RESTORE, 1, err=fatal("Error: listen tcp 127.0.0.1:6444: bind: address already in use"),
        effect=database_untouched,
    ),
    "restore on a server that joined": Row(
        RESTORE, 1, on="s2", before=all_stopped(),
        err=fatal(
            "Error: cannot perform cluster-reset while server URL is set - remove server from configuration before "
            "resetting"
        ),
    ),
    "restore of a missing file": Row(
        k3s("server", "--cluster-reset", "--cluster-reset-restore-path=/srv/nosuch"), 1, before=all_stopped(),
        err=fatal(f"{START_ERROR}: etcd: snapshot path does not exist: /srv/nosuch"), effect=database_untouched,
    ),
    "restore of a relative path": Row(
        k3s("server", "--cluster-reset", "--cluster-reset-restore-path=db/snapshots/keep"), 1, before=all_stopped(),
        err=fatal(f"{START_ERROR}: etcd: snapshot path does not exist: db/snapshots/keep"), effect=database_untouched,
    ),
    "restore of a text": Row(
        RESTORE, 1, before=all_stopped(damage="text"), effect=database_moved,
        err=line("info", f"Pre-restore etcd database moved to {D}/server/db/etcd-old-…")
        + fatal(f"{START_ERROR}: seek /srv/keep: invalid argument"),
    ),
    "restore of a damaged file": Row(
        RESTORE, 1, before=all_stopped(damage="bytes"), effect=database_moved,
        err=line("info", f"Pre-restore etcd database moved to {D}/server/db/etcd-old-…")
        + fatal(f"{START_ERROR}: expected sha256 […], got […]"),
    ),
    "restore with a flag of an earlier one": Row(
        k3s("server", "--cluster-reset"), 1,
        before=lambda servers: flagged(servers),
        err=fatal(
            f"{START_ERROR}: Managed etcd cluster membership was previously reset, please remove the cluster-reset "
            "flag and start k3s normally. If you need …manually delete the file at …/db/reset-flag"
        ),
    ),
    "restore of a compressed file": Row(
        k3s("server", "--cluster-reset", f"--cluster-reset-restore-path={SNAPSHOTS}/X.zip"), 1, before=all_stopped(),
        err=fatal(f"{START_ERROR}: open {SNAPSHOTS}{SNAPSHOTS}/X.zip: no such file or directory"),
        effect=database_untouched,
    ),
    "restore from S3, no such key": Row(
        k3s("server", "--cluster-reset", "--cluster-reset-restore-path=nosuch", *S3, *KEYS, HERE), 1,
        before=lambda servers: in_s3(servers),
        err=fatal(f"{START_ERROR}: failed to download snapshot from S3: The specified key does not exist."),
    ),
    "restore from S3": Row(
        k3s("server", "--cluster-reset", "--cluster-reset-restore-path=keep", *S3, *KEYS, HERE),
        before=lambda servers: in_s3(servers),
        err=line("info", f"S3 download complete for {SNAPSHOTS}/keep") + RESTORED, effect=restored,
    ),
}  # fmt: skip


async def flagged(servers: Servers) -> None:
    await servers.stop_all()
    servers["s1"].disk.files[f"{D}/server/db/reset-flag"] = b""


async def in_s3(servers: Servers) -> None:
    await all_stopped()(servers)
    servers.context.s3.buckets["snaps"] = {"farm/keep": servers["s1"].disk.files["/srv/keep"]}


@pytest.mark.parametrize("title", ROWS)
def test_commands_behave_as_in_the_transcripts(title: str) -> None:
    row = ROWS[title]

    async def scenario(servers: Servers) -> None:
        await row.before(servers)
        finished = await servers.run(row.on, *row.argv)
        stderr = re.sub(r"level=warning msg=\"Unknown flag --.*\n", "", finished.stderr.decode())
        assert finished.exit_code == row.code, finished
        assert re.fullmatch(row.out, finished.stdout.decode()), finished.stdout.decode()
        assert re.fullmatch(row.err, stderr), stderr
        await row.effect(servers)

    run(scenario, **row.options)
