"""Tasks of K3s and RKE2, by their own commands."""

from __future__ import annotations

from herder.api.rke import operations
from herder.api.rke.node.plan import Instruction
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.rancher.authorities import (
    DISCARD_SCRIPT,
    PREPARE_SCRIPT,
    REPLACE_SCRIPT,
    REPORT_SCRIPT,
)
from herder.controllers.planner.distributions.rancher.runtime import Runtime, loopback
from herder.controllers.planner.distributions.rancher.snapshots import VERIFY, snapshot_directory
from herder.controllers.planner.distributions.tasks import (
    CheckSnapshot,
    DeleteSnapshots,
    DeleteStaleNodes,
    DiscardAuthorities,
    EncryptSecrets,
    PrepareAuthorities,
    Rejoin,
    RestartServices,
    RestoreSnapshot,
    RotateAuthorities,
    RotateCertificates,
    SaveSnapshot,
    SnapshotFile,
    StartServices,
    StopServices,
    Task,
    UnsupportedTask,
    delete_nodes,
    file_arguments,
    script_instruction,
)

UNITS = "/etc/systemd/system"

SAVE_SCRIPT = f"""set -u
{VERIFY}program=$1 directory=$2
output=$("$program" etcd-snapshot save 2>&1)
code=$?
printf '%s\\n' "$output" >&2
[ "$code" = 0 ] || exit "$code"
name=$(printf '%s\\n' "$output" | sed -n 's/.*Snapshot \\([^ ]*\\) saved\\..*/\\1/p' | tail -n 1)
[ -n "$name" ] || {{ echo "no snapshot was saved; the log of the service has the cause" >&2; exit 1; }}
file=$directory/$name hash= tls=${{directory%/db/snapshots}}/tls authorities=
if [ -f "$file" ]; then
    case $name in *.zip) ;; *) verify "$file" || exit 1 ;; esac
    hash=$(sha256sum < "$file")
fi
if [ -n "$hash" ] && [ -f "$tls/server-ca.crt" ]; then
    authorities=$(cat "$tls/client-ca.crt" "$tls/server-ca.crt" "$tls/request-header-ca.crt" \\
        "$tls/etcd/peer-ca.crt" "$tls/etcd/server-ca.crt" | sha256sum)
fi
printf '{{"hashes":{{%s}},' "${{hash:+\\"$name\\":\\"${{hash%% *}}\\"}}"
printf '"authorities":"%s","list":' "${{authorities%% *}}"
"$program" etcd-snapshot ls -o json || exit 1
printf '}}\\n'
"""
"""Saves a snapshot, verifies it, and prints its hash and all snapshots. The command exits with 0 even if it cannot
write the file: only its message shows that it has.
"""

DELETE_SCRIPT = """set -u
program=$1
shift
while [ "$#" -ge 2 ]; do
    s3=$1 name=$2
    shift 2
    if [ "$s3" = true ]; then
        output=$("$program" etcd-snapshot delete "$name" 2>&1)
    else
        output=$("$program" etcd-snapshot delete --etcd-s3=false "$name" 2>&1)
    fi
    code=$?
    printf '%s\\n' "$output" >&2
    [ "$code" = 0 ] || exit "$code"
    case $output in
        *"Snapshot $name deleted."* | *"Snapshot $name not found."*) ;;
        *) echo "snapshot $name was not deleted; the log of the service has the cause" >&2; exit 1 ;;
    esac
done
"""
"""Deletes files, which follow as pairs: whether it is in S3, and its name."""

ROTATE_SCRIPT = """set -u
unit=$1 data=$2 code=0
shift 2
systemctl stop "$unit" && "$@" || code=$?
for name in kube-controller-manager kube-scheduler; do
    [ "$code" = 0 ] || break
    rm -f "$data/server/tls/$name/$name.crt" "$data/server/tls/$name/$name.key" || code=$?
    rm -f "$data/agent/pod-manifests/$name.yaml" || code=$?
done
systemctl reset-failed "$unit" 2> /dev/null
systemctl start "$unit" || exit
exit "$code"
"""
"""Runs the command while the service is stopped, which starts again also after a failure. Both components create the
removed certificates when they start.
"""

ENCRYPT_SCRIPT = """set -u
program=$1 step=$2
case $step in
    prepare) reached='prepare rotate' ;;
    rotate) reached='rotate reencrypt_request reencrypt_active reencrypt_finished' ;;
    *) reached=reencrypt_finished ;;
esac
tries=0 waits=0 last=
while :; do
    output=$("$program" secrets-encrypt status 2>&1)
    case $output in
        *"Encryption Status: Disabled"*) printf '%s\\n' "encryption of Secrets is not enabled: $output" >&2; exit 1 ;;
    esac
    stage=$(printf '%s\\n' "$output" | sed -n 's/^Current Rotation Stage: //p')
    case " $reached " in *" ${stage:-unknown} "*) printf '%s\\n' "$output"; exit 0 ;; esac
    case $stage in
        reencrypt_request | reencrypt_active)
            reached="$reached reencrypt_finished" last=$output waits=$((waits + 1))
            [ "$waits" -le 300 ] || { printf '%s\\n' "Secrets are still being encrypted again: $output" >&2; exit 1; }
            sleep 5
            continue
            ;;
    esac
    tries=$((tries + 1))
    [ "$tries" -le 24 ] || { printf '%s\\n' "$last" >&2; exit 1; }
    if [ -n "$stage" ]; then
        last=$("$program" secrets-encrypt "$step" 2>&1) || sleep 5
    else
        last="the status of the encryption cannot be read: $output"
        sleep 5
    fi
done
"""
"""Runs the step until the server reports its stage, or a later one: that of a rotation that was interrupted, which this
one completes. Servers that have just restarted refuse a step for some seconds. Many Secrets take minutes to encrypt.
"""

SYSTEMCTL_SCRIPT = """set -eu
systemctl "$1" "$2"
"""

CHECK_SCRIPT = f"""set -u
{VERIFY}file=$1 recorded=$2
[ -f "$file" ] || {{ echo "$file does not exist" >&2; exit 1; }}
[ -r "$file" ] && [ -s "$file" ] || {{ echo "$file is empty or cannot be read" >&2; exit 1; }}
hash=$(sha256sum < "$file")
[ -z "$recorded" ] || [ "${{hash%% *}}" = "$recorded" ] || {{
    echo "$file is another file than the one that was saved: its hash differs" >&2
    exit 1
}}
verify "$file"
"""

CHECK_S3_SCRIPT = """set -u
name=$1
shift
listed=$("$@") || exit 1
found=$(printf '%s\\n' "$listed" | while read -r each location _; do
    case $location in s3://*) [ "$each" != "$name" ] || echo yes ;; esac
done)
[ -n "$found" ] || { echo "the bucket has no snapshot $name" >&2; exit 1; }
"""
"""The list has the files of this server too, and names that contain this one."""

_FENCE = """fence=$data/server/db/restore-fence
fence() {
    drop_in=$units/$unit.service.d/50-herder-restore.conf
    mkdir -p "${fence%/*}" "${drop_in%/*}" || return 1
    path=$(printf '%s\\n' "$fence" | sed 's/%/%%/g') || return 1
    printf '[Unit]\\nConditionPathExists=!%s\\n' "$path" > "$drop_in" || return 1
    printf '%s\\n' "${OPERATION%%/*}" > "$fence" || return 1
    sync
    systemctl daemon-reload
}
unfence() { rm -f "$fence" && sync; }
"""
"""A fenced service does not start: neither with its machine, nor by the installer of a plan without a task.

systemd reads the condition whenever it would start the service. The fence is in the directory of the data, so that it
ends with the data. The drop-in stays, and changes nothing without a fence. In a drop-in, `%` begins a specifier.
"""

STOP_SCRIPT = f"""set -eu
killall=$1 unit=$2 data=$3 units=$4
{_FENCE}if [ -n "$units" ]; then
    fence
fi
"$killall"
"""
"""Fences the server before it stops it, so that it never is stopped without a fence. `units` is empty for servers
without etcd: they have no data to start with.
"""

DROP_SCRIPT = f"""set -eu
unit=$1 data=$2
{_FENCE}marker=$data/server/db/dropped-for
restore=${{OPERATION%%/*}}
if [ "$(cat "$marker" 2> /dev/null)" = "$restore" ]; then
    echo "the data was dropped already; it is that of the restored cluster"
    unfence
    exit
fi
systemctl stop "$unit"
rm -f "$data/server/db/restore-journal"
rm -rf "$data/server/db/etcd" "$data/server/db/restore-cred"
mkdir -p "$data/server/db"
printf '%s\\n' "$restore" > "$marker"
sync
unfence
"""
"""Drops the data once in each restore. An agent that was killed runs the task again when the server may have joined;
without its data, its member would count as lost, and etcd could lose its quorum.
"""

_JOURNAL = """unit=$1 data=$2 accepted=$3
shift 3
run=${OPERATION%%/*}
db=$data/server/db
journal=$db/restore-journal cred=$data/server/cred kept=$db/restore-cred
is_of() { [ -n "$1" ] && grep -Fqx -e "run $1" "$journal" 2> /dev/null; }
is_completed() { grep -Fqx completed "$journal" 2> /dev/null; }
commit() {
    rm -f "$journal"
    rm -rf "$kept"
}
undo() {
    [ -e "$journal" ] || return 0
    systemctl stop "$unit" 2> /dev/null || true
    ! grep -Fqx empty "$journal" || rm -rf "$db/etcd"
    for old in "$db/"etcd-old-*; do
        [ -d "$old" ] || continue
        ! grep -Fqx -e "$old" "$journal" || continue
        rm -rf "$db/etcd"
        mv "$old" "$db/etcd" || return 1
    done
    if [ -d "$kept" ]; then
        rm -rf "$cred"
        cp -a "$kept" "$cred" || return 1
    fi
    rm -f "$db/reset-flag"
    sync
    commit
}
settle() { if is_of "$accepted"; then commit; else undo; fi; }
"""
"""The journal exists from the begin of a restore until the server starts with the restored data, or with the old data.

It has the ID of the run, the old data of earlier restores, and whether the restore has completed. A restored snapshot
brings its encryption keys, so those of before are kept too.
"""

RESTORE_SCRIPT = f"""set -u
{_JOURNAL}{_FENCE}units=$1
shift
if is_of "$run" && is_completed; then
    echo "the snapshot was restored already"
    exit 0
fi
systemctl stop "$unit" 2> /dev/null
fence && settle || exit 1
mkdir -p "$db" && rm -rf "$kept" || exit 1
[ ! -d "$cred" ] || cp -a "$cred" "$kept" || exit 1
{{
    printf 'run %s\\n' "$run" || exit 1
    [ -e "$db/etcd" ] || echo empty || exit 1
    for old in "$db/"etcd-old-*; do [ ! -d "$old" ] || printf '%s\\n' "$old" || exit 1; done
}} > "$journal.new"
sync
mv "$journal.new" "$journal" || exit 1
"$@"
code=$?
if [ "$code" = 0 ]; then
    sync
    echo completed >> "$journal" && sync
    exit
fi
undo && unfence
exit "$code"
"""
"""Runs the restore. It moves the data away before it fails; without data, the service would begin an empty cluster.

The service must not start with the restored data either while the cluster can still continue with the old data. So it
is fenced until the restore is committed or undone, also if that fails.
"""

UNDO_RESTORE_SCRIPT = f"""set -u
{_JOURNAL}{_FENCE}settle && unfence
"""
"""Undoes a restore before the service starts, also one that has completed without a report."""

COMMIT_RESTORE_SCRIPT = f"""set -u
{_JOURNAL}{_FENCE}if [ -e "$journal" ]; then
    is_of "$run" && is_completed || {{ echo "no restore of this operation has completed here" >&2; exit 1; }}
    commit || exit 1
fi
unfence
"""
"""From now on, the server starts with the restored data, and nothing undoes the restore."""


def task_instructions(
    cluster: ClusterInputs, machine: MachineInputs, runtime: Runtime, task: Task
) -> tuple[Instruction, ...]:
    if machine.windows and isinstance(task, RotateCertificates):
        return ()
    data, unit = runtime.data(cluster), runtime.agent_unit if machine.roles.only_worker else runtime.server_unit
    match task:
        case SaveSnapshot():
            return (
                script_instruction(operations.SAVE_SNAPSHOT, SAVE_SCRIPT, task, runtime.name, snapshot_directory(data)),
            )
        case DeleteSnapshots():
            files = file_arguments(task)
            return (script_instruction(operations.DELETE_SNAPSHOTS, DELETE_SCRIPT, task, runtime.name, *files),)
        case RotateCertificates() if machine.roles.only_worker:
            return _restart(task, unit)
        case RotateCertificates():
            services = [part for service in task.services for part in ("-s", service)]
            command = (unit, data, runtime.name, "certificate", "rotate", *services)
            rotation = script_instruction(operations.ROTATE_CERTIFICATES, ROTATE_SCRIPT, task, *command)
            report = script_instruction(operations.REPORT_AUTHORITIES, REPORT_SCRIPT, task, data)
            return (rotation, report) if task.reports_authorities else (rotation,)
        case PrepareAuthorities():
            return (script_instruction(operations.PREPARE_AUTHORITIES, PREPARE_SCRIPT, task, data, runtime.name),)
        case DiscardAuthorities():
            return (script_instruction(operations.DISCARD_AUTHORITIES, DISCARD_SCRIPT, task, data),)
        case RotateAuthorities():
            arguments = (data, runtime.name, unit)
            return (script_instruction(operations.ROTATE_AUTHORITIES, REPLACE_SCRIPT, task, *arguments),)
        case EncryptSecrets():
            step = script_instruction(operations.ENCRYPT_SECRETS, ENCRYPT_SCRIPT, task, runtime.name, task.step)
            return (*_restart(task, unit), step) if task.restarts else (step,)
        case RestartServices():
            return _restart(task, unit)
        case CheckSnapshot(file=SnapshotFile(in_s3=True)):
            listing = (runtime.name, "etcd-snapshot", "ls")
            return (script_instruction(operations.CHECK_SNAPSHOT, CHECK_S3_SCRIPT, task, task.file.name, *listing),)
        case CheckSnapshot():
            file = (f"{snapshot_directory(data)}/{task.file.name}", task.file.sha256)
            return (script_instruction(operations.CHECK_SNAPSHOT, CHECK_SCRIPT, task, *file),)
        case StopServices():
            fence = (unit, data, UNITS if machine.roles.etcd else "")
            stop = (f"{runtime.name}-killall.sh", *fence)
            return (script_instruction(operations.STOP_SERVICES, STOP_SCRIPT, task, *stop),)
        case StartServices():
            arguments = (unit, data, task.accepted)
            undo = script_instruction(operations.UNDO_RESTORE, UNDO_RESTORE_SCRIPT, task, *arguments)
            return undo, script_instruction(operations.START_SERVICES, SYSTEMCTL_SCRIPT, task, "start", unit)
        case RestoreSnapshot():
            return (_restore(cluster, runtime, unit, data, task),)
        case Rejoin(drop_data=True):
            return (script_instruction(operations.DROP_DATA, DROP_SCRIPT, task, unit, data),)
        case Rejoin(commits=True):
            return (script_instruction(operations.COMMIT_RESTORE, COMMIT_RESTORE_SCRIPT, task, unit, data, ""),)
        case Rejoin():
            return ()
        case DeleteStaleNodes():
            return (delete_nodes(task, *kubectl(runtime, data)),)
    raise UnsupportedTask(f"{runtime.name} has no task {type(task).__name__}")


def _restart(task: Task, unit: str) -> tuple[Instruction, ...]:
    return (script_instruction(operations.RESTART_SERVICES, SYSTEMCTL_SCRIPT, task, "restart", unit),)


def _restore(cluster: ClusterInputs, runtime: Runtime, unit: str, data: str, task: RestoreSnapshot) -> Instruction:
    """Local files are given by their path; the name of an object in S3 goes with the arguments of the config file."""
    path = task.file.name if task.file.in_s3 else f"{snapshot_directory(data)}/{task.file.name}"
    command = [
        runtime.name,
        "server",
        "--cluster-reset",
        f"--etcd-arg=advertise-client-urls=https://{loopback(cluster)}:2379",
        "--etcd-disable-snapshots=false",
        f"--cluster-reset-restore-path={path}",
    ]
    if not task.file.in_s3:
        command.append("--etcd-s3=false")
    arguments = (unit, data, task.accepted, UNITS, *command)
    return script_instruction(operations.RESTORE_SNAPSHOT, RESTORE_SCRIPT, task, *arguments)


def kubectl(runtime: Runtime, data: str) -> tuple[str, ...]:
    if runtime.name == "k3s":
        return ("k3s", "kubectl")
    return (f"{data}/bin/kubectl", "--kubeconfig", "/etc/rancher/rke2/rke2.yaml")
