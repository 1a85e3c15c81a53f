"""Encryption of Secrets on kubeadm servers: an EncryptionConfiguration with the manager's keys.

Its files restart nothing. The API server reads the configuration when it starts, and the tasks of a rotation restart
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herder.api.rke import operations
from herder.api.rke.etcd.encryption import BEFORE
from herder.api.rke.node.plan import File, Instruction, Plan, file
from herder.controllers.planner.distributions.interface import ClusterInputs, EncryptionKeys, MachineInputs
from herder.controllers.planner.distributions.kubeadm.components import COMMON_FUNCTIONS, RESTART_FUNCTIONS
from herder.controllers.planner.distributions.kubeadm.paths import CONFIG_DIR, as_json
from herder.controllers.planner.distributions.tasks import (
    EncryptSecrets,
    RestartServices,
    UnsupportedTask,
    script_instruction,
)
from herder.engine.meta.kinds import Object

DIRECTORY = f"{CONFIG_DIR}/encryption"
CONFIG_FILE = f"{DIRECTORY}/config.json"
PATCH_FILE = "/var/lib/rancher/kubeadm/patches/kube-apiserver-encryption+json.json"
FLAG = "encryption-provider-config"
PROVIDER = "secretbox"

_CHECK = """
config=$1 hash=$2
[ "$(sha256sum < "$config" | cut -d ' ' -f 1)" = "$hash" ] || fail "$config is not the file of this plan"
"""

CHECK_SCRIPT = f"""{COMMON_FUNCTIONS}{_CHECK}
for each in etcdctl python3; do
    command -v "$each" > /dev/null || fail "$each is required on this server"
done
[ -e "$state/reencrypt.py" ] || fail "this server cannot encrypt Secrets again; upgrade the cluster to an installer \\
image of this version of Herder"
tries=120 # the server may have just started
until problem=$(kubectl --kubeconfig "$admin" get --raw '/api/v1/secrets?limit=100' 2>&1 > /dev/null); do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || fail "Secrets of the cluster cannot be read: $problem"
    sleep 1
done
echo "encryption configuration $hash"
"""
"""Checks that the server can rotate. The configuration has been written, and the next phase loads it."""

RESTART_SCRIPT = f"""{COMMON_FUNCTIONS}{RESTART_FUNCTIONS}{_CHECK}
name=$(node_name "$3") manifest=/etc/kubernetes/manifests/kube-apiserver.yaml
if grep -qF -e "--encryption-provider-config=$config" "$manifest"; then
    restart kube-apiserver
else # the first keys of this cluster
    old=$(running kube-apiserver)
    kubeadm init phase control-plane apiserver --config /etc/rancher/kubeadm/init.yaml >&2
    grep -qF -e "--encryption-provider-config=$config" "$manifest" || fail "$manifest has no encryption configuration"
    wait_until_replaced kube-apiserver "$old"
fi
echo "encryption configuration $hash"
"""
"""Restarts the API server, and reports the configuration that it has loaded."""

REENCRYPT_SCRIPT = f"""{COMMON_FUNCTIONS}{_CHECK}
python3 "$state/reencrypt.py" --kubeconfig "$admin" --prefix "$3" >&2
echo "encryption configuration $hash"
"""


def keys_problem(spec: Mapping[str, Any]) -> str:
    """Users may bring their own configuration, such as one with a key management service."""
    selected = [each.get("config") or {} for each in spec.get("machineSelectorConfig") or ()]
    for config in (spec.get("machineGlobalConfig") or {}, *selected):
        given = config.get("kube-apiserver-arg") or ()
        for argument in [given] if isinstance(given, str) else given:
            if str(argument).removeprefix("--").partition("=")[0] == FLAG:
                return f"kube-apiserver-arg: {FLAG} is set, so the keys are yours; rotate them there"
    return ""


def key_files(cluster: ClusterInputs) -> Iterator[File]:
    """Minor, because nothing reads them before a task or an upgrade restarts the API server."""
    if cluster.encryption is not None:
        yield file(CONFIG_FILE, _configuration(cluster.encryption), permissions="0600", dynamic=True, minor=True)
        yield file(PATCH_FILE, as_json(_patch()), dynamic=True, minor=True)


def key_task(cluster: ClusterInputs, machine: MachineInputs, task: EncryptSecrets | RestartServices) -> Plan:
    if cluster.encryption is None:
        raise UnsupportedTask("the manager does not own the keys of this cluster")
    return Plan(files=tuple(key_files(cluster)), instructions=(_instruction(cluster.encryption, machine, task),))


def _instruction(keys: EncryptionKeys, machine: MachineInputs, task: EncryptSecrets | RestartServices) -> Instruction:
    arguments = (CONFIG_FILE, hashlib.sha256(_configuration(keys).encode()).hexdigest())
    if isinstance(task, RestartServices):
        return script_instruction(operations.RESTART_SERVICES, RESTART_SCRIPT, task, *arguments, machine.node_name)
    if task.step == "reencrypt":
        prefix = f"k8s:enc:{PROVIDER}:v1:{_key_name(keys.loaded[0])}:"
        return script_instruction(operations.ENCRYPT_SECRETS, REENCRYPT_SCRIPT, task, *arguments, prefix)
    return script_instruction(operations.ENCRYPT_SECRETS, CHECK_SCRIPT, task, *arguments)


# --- configuration ----------------------------------------------------------------------------------------------------


def _configuration(keys: EncryptionKeys) -> str:
    resource = {"resources": ["secrets"], "providers": [*_providers(keys)]}
    return as_json(
        {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": [resource]}
    )


def _providers(keys: EncryptionKeys) -> Iterator[Object]:
    """The first provider encrypts with its first key. Unencrypted Secrets stay readable, as in K3s."""
    position = keys.loaded.index(BEFORE) if BEFORE in keys.loaded else len(keys.loaded)
    before, after = keys.loaded[:position], keys.loaded[position + 1 :]
    yield from _provider(keys, before)
    yield {"identity": {}}
    yield from _provider(keys, after)


def _provider(keys: EncryptionKeys, generations: Sequence[int]) -> Iterator[Object]:
    if generations:
        named = [{"name": _key_name(each), "secret": keys.keys[each]} for each in generations]
        yield {PROVIDER: {"keys": named}}


def _key_name(generation: int) -> str:
    return f"key{generation}"


def _patch() -> list[Object]:
    """Of the manifest of the API server. It comes last, so it takes precedence over the user's arguments."""
    container = "/spec/containers/0"
    mount = {"name": "herder-encryption", "mountPath": DIRECTORY, "readOnly": True}
    volume = {"name": "herder-encryption", "hostPath": {"path": DIRECTORY, "type": "DirectoryOrCreate"}}
    return [
        {"op": "add", "path": f"{container}/command/-", "value": f"--{FLAG}={CONFIG_FILE}"},
        {"op": "add", "path": f"{container}/volumeMounts/-", "value": mount},
        {"op": "add", "path": "/spec/volumes/-", "value": volume},
    ]
