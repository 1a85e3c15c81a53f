"""Rotation of certificates and encryption keys of embedded servers.

The server creates missing certificates, and reads the keys of the manager, when it starts. Nodes have neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from herder.api.rke import operations
from herder.api.rke.distributions import EMBEDDED
from herder.api.rke.etcd.encryption import BEFORE
from herder.api.rke.node.plan import File, Plan, file
from herder.api.rke.services import SERVICES, unknown_services
from herder.controllers.planner.distributions.certificate_report import embedded_expiry
from herder.controllers.planner.distributions.interface import ClusterInputs, EncryptionKeys, MachineInputs
from herder.controllers.planner.distributions.tasks import (
    EncryptSecrets,
    RestartServices,
    RotateCertificates,
    Task,
    UnsupportedTask,
    script_instruction,
)

CERTIFICATES = {"admin": "admin", "api-server": "serving"}
"""Files of each service, without suffix."""
OWN_KEY = "local"
"""Line of the file that stands for the key that the server created itself."""

_RESTART_FUNCTIONS = """set -eu
fail() { echo "$*" >&2; exit 1; }

process() {
    if [ -d /run/systemd/system ]; then
        systemctl show --property=MainPID --value herder-server
    else
        cat /run/herder-server.child
    fi
}

restart() {
    old=$(process)
    if [ -d /run/systemd/system ]; then
        systemctl restart herder-server
    else
        kill "$old" 2> /dev/null || true # its boot script starts another process
    fi
}

await() { # FUNCTION; until another process has done it
    tries=300
    until now=$(process) && [ "$now" != "$old" ] && kill -0 "$now" 2> /dev/null && "$1"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "herder-server does not run 5 minutes after it was restarted; see its log"
        sleep 1
    done
}
"""

ROTATE_SCRIPT = f"""{_RESTART_FUNCTIONS}
directory=$1
shift
is_issued() {{ for each in $names; do [ -s "$directory/$each.crt" ] || return 1; done; }}
names=$*
for each in $names; do
    rm -f "$directory/$each.crt" "$directory/$each.key"
done
restart
await is_issued
echo "certificates are renewed: $names"
"""
"""Removes certificates; the server creates them when it starts."""

_CHECK = """
keys=$1 hash=$2 status=$3
[ "$(sha256sum < "$keys" | cut -d ' ' -f 1)" = "$hash" ] || fail "$keys is not the file of this plan"
"""

CHECK_SCRIPT = f"""{_RESTART_FUNCTIONS}{_CHECK}
echo "encryption configuration $hash"
"""

RESTART_SCRIPT = f"""{_RESTART_FUNCTIONS}{_CHECK}
is_loaded() {{ grep -qxF "loaded $hash $now" "$status" 2> /dev/null; }}
restart
await is_loaded
echo "encryption configuration $hash"
"""

REENCRYPT_SCRIPT = f"""{_RESTART_FUNCTIONS}{_CHECK}
tries=1500
until grep -qxF "encrypted $hash" "$status" 2> /dev/null; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "the server has not encrypted all Secrets again within 25 minutes; see its log"
    sleep 1
done
echo "encryption configuration $hash"
"""
"""Waits: a server encrypts everything again when it starts with another key."""


def rotation_task(cluster: ClusterInputs, machine: MachineInputs, task: Task, directory: str) -> Plan | None:
    """None for tasks that are not part of a rotation. `directory`: with the data of the distribution."""
    match task:
        case RotateCertificates():
            return _rotate_certificates(machine, task, directory)
        case EncryptSecrets() | RestartServices():
            return _rotate_keys(cluster, task, directory)
    return None


def _rotate_certificates(machine: MachineInputs, task: RotateCertificates, directory: str) -> Plan:
    """Machines of an older manager get the report of their certificates with the rotation."""
    if unknown := unknown_services(EMBEDDED.name, task.services):
        raise UnsupportedTask(f"rotateCertificates.services: {unknown}")
    if not machine.roles.is_server:
        return Plan()
    names = [CERTIFICATES[each] for each in SERVICES[EMBEDDED.name] if not task.services or each in task.services]
    arguments = (f"{directory}/server/tls", *names)
    rotation = script_instruction(operations.ROTATE_CERTIFICATES, ROTATE_SCRIPT, task, *arguments)
    return Plan(instructions=(rotation,), periodic_instructions=(embedded_expiry(directory, is_server=True),))


# --- encryption keys --------------------------------------------------------------------------------------------------


def key_files(cluster: ClusterInputs, directory: str) -> Iterator[File]:
    """Minor, because the server reads the file only when it starts."""
    if cluster.encryption is not None:
        path, content = _keys_file(directory), _lines(cluster.encryption)
        yield file(path, content, permissions="0600", dynamic=True, minor=True)


def _rotate_keys(cluster: ClusterInputs, task: EncryptSecrets | RestartServices, directory: str) -> Plan:
    if cluster.encryption is None:
        raise UnsupportedTask("the manager does not own the keys of this cluster")
    digest = hashlib.sha256(_lines(cluster.encryption).encode()).hexdigest()
    arguments = (_keys_file(directory), digest, f"{directory}/server/db/encryption.status")
    if isinstance(task, RestartServices):
        name, script = operations.RESTART_SERVICES, RESTART_SCRIPT
    else:
        name = operations.ENCRYPT_SECRETS
        script = REENCRYPT_SCRIPT if task.step == "reencrypt" else CHECK_SCRIPT
    files = tuple(key_files(cluster, directory))
    return Plan(files=files, instructions=(script_instruction(name, script, task, *arguments),))


def _keys_file(directory: str) -> str:
    return f"{directory}/server/db/managed.keys"


def _lines(keys: EncryptionKeys) -> str:
    """One key per line, as in the key file of the store."""
    return "".join(f"{OWN_KEY if each == BEFORE else keys.keys[each]}\n" for each in keys.loaded)
