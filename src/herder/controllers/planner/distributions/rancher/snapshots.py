"""Configure etcd snapshots: schedule, retention and S3; report the hashes of their files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from herder.api.rke.node.plan import SNAPSHOT_HASHES, File, PeriodicInstruction
from herder.api.rke.node.snapshot_hashes import MAX_HASHES
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.runtime import Runtime
from herder.controllers.planner.distributions.s3 import S3Storage, storage_of

PERIOD_SECONDS = 1800
"""Each report is a write of a plan Secret. Snapshots that are deleted sooner may get no hash."""
READ_BYTES = 1 << 30
"""After so many bytes of new files, the others are left to the next time: the agent does nothing else meanwhile."""

VERIFY = """verify() {
    size=$(wc -c < "$1")
    [ "$((size % 512))" = 32 ] || { echo "$1 is not an etcd snapshot, or is truncated" >&2; return 1; }
    expected=$(tail -c 32 "$1" | od -An -v -tx1 | tr -d ' \\n')
    actual=$(head -c "$((size - 32))" "$1" | sha256sum)
    [ "${actual%% *}" = "$expected" ] || { echo "$1 is corrupt: its hash is wrong" >&2; return 1; }
}
"""
"""A snapshot of etcd ends with the SHA-256 of what comes before."""

HASH_SCRIPT = f"""set -u
{VERIFY}directory=$1 known=$2 limit=$3 budget=$4
cd "$directory" 2> /dev/null || exit 0
renice -n 19 -p $$ > /dev/null 2>&1
umask 077
touch "$known" && printf '%0200d' 0 > "$known.new" || exit 1
is_hash() {{
    case $1 in *[!0-9a-f]*) return 1 ;; esac
    [ "${{#1}}" = 64 ]
}}
state_of() {{ stat -c '%s %Y' "./$1" 2> /dev/null; }}
recall() {{
    while read -r name size time hash; do
        [ "$name $size $time" != "$1" ] || {{ printf '%s\\n' "$hash"; break; }}
    done < "$known"
}}
ls -t | {{
    count=0 total=0
    while [ "$count" -lt "$limit" ] && read -r file; do
        case $file in '' | [!A-Za-z0-9]* | *[!A-Za-z0-9._-]* | *.part | *.zip) continue ;; esac
        [ -f "$file" ] && [ ! -L "$file" ] && state=$(state_of "$file") || continue
        count=$((count + 1))
        hash=$(recall "$file $state")
        if [ "$hash" != - ] && ! is_hash "$hash"; then
            [ "$total" -lt "$budget" ] || continue
            total=$((total + ${{state%% *}}))
            hash=$(sha256sum < "$file") && hash=${{hash%% *}} && is_hash "$hash" || continue
            verify "$file" 2> /dev/null || hash=-
            [ "$(state_of "$file")" = "$state" ] || continue
        fi
        printf '%s %s %s\\n' "$file" "$state" "$hash" || exit 1
    done
}} > "$known.new" || exit 1
mv "$known.new" "$known" || exit 1
while read -r name size time hash; do
    ! is_hash "$hash" || printf 'snapshot %s %s\\n' "$hash" "$name"
done < "$known"
"""
"""Prints the hashes of the newest snapshots on the disk.

A new file is verified and hashed once. The file `known` has a line for each file: its name, size, time and hash. Files
that are no valid snapshot have none, as those that are still being copied, until their size or time changes. A disk
without free space is noticed before any file is read: otherwise, each retry would read the same files again.
"""


def hash_instruction(data: str) -> PeriodicInstruction:
    """`data`: the data directory. K3s lists every file in the directory of snapshots, so `known` is beside it."""
    directory = snapshot_directory(data)
    return PeriodicInstruction(
        name=SNAPSHOT_HASHES,
        command="sh",
        args=(
            "-c",
            HASH_SCRIPT,
            "sh",
            directory,
            f"{data}/server/db/snapshot-hashes",
            str(MAX_HASHES),
            str(READ_BYTES),
        ),
        env=("LC_ALL=C",),
        period_seconds=PERIOD_SECONDS,
    )


def snapshot_directory(data: str) -> str:
    return f"{data}/server/db/snapshots"


def add_snapshots(
    config: dict[str, Any], cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime
) -> list[File]:
    etcd: Mapping[str, Any] = cluster.spec.get("etcd") or {}
    if not machine.roles.etcd or not etcd:
        return []
    if etcd.get("disableSnapshots"):
        config["etcd-disable-snapshots"] = True
    if etcd.get("snapshotRetention"):
        config["etcd-snapshot-retention"] = etcd["snapshotRetention"]
    if etcd.get("snapshotScheduleCron"):
        config["etcd-snapshot-schedule-cron"] = etcd["snapshotScheduleCron"]
    storage = storage_of(cluster)
    return _add_s3(config, storage, cluster, runtime) if storage is not None else []


def _add_s3(config: dict[str, Any], storage: S3Storage, cluster: ClusterInputs, runtime: Runtime) -> list[File]:
    values = {
        "bucket": storage.bucket,
        "access-key": storage.access_key,
        "secret-key": storage.secret_key,
        "region": storage.region,
        "folder": storage.folder,
        "endpoint": storage.endpoint,
        "skip-ssl-verify": storage.skip_ssl_verify,
        "retention": storage.retention,
    }
    config |= {f"etcd-s3-{name}": value for name, value in values.items() if value}
    config["etcd-s3"] = True
    if not storage.endpoint_ca:
        return []
    file = _authority(storage.endpoint_ca, cluster, runtime)
    config["etcd-s3-endpoint-ca"] = file.path
    return [file]


def _authority(authority: str, cluster: ClusterInputs, runtime: Runtime) -> File:
    """The file of the endpoint's CA, which is given as PEM or as PEM in base64."""
    encoded = authority if _is_base64(authority) else base64.b64encode(authority.encode()).decode()
    digest = hashlib.md5(encoded.encode(), usedforsecurity=False).hexdigest()[:5]
    return File(path=f"{runtime.data(cluster)}/etc/config-files/s3-endpoint-ca-{digest}.crt", content=encoded)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True
