"""Paths, endpoint, bootstrap token and file formats that the files of kubeadm machines share."""

from __future__ import annotations

import hashlib
import json

from herder.api.rke.machine_config.errors import ConfigError
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.engine.meta.kinds import Object

CONFIG_DIR, STATE_DIR = "/etc/rancher/kubeadm", "/var/lib/rancher/kubeadm"
ENDPOINT = "control-plane.herder.internal"
API_PORT = 6443


def token(cluster: ClusterInputs) -> str:
    """A bootstrap token, derived from the cluster's agent token."""
    digest = hashlib.sha256(f"bootstrap-token:{cluster.agent_token}".encode()).hexdigest()
    return f"{digest[:6]}.{digest[6:22]}"


def addresses(machine: MachineInputs) -> list[str]:
    found = list(machine.internal_addresses or machine.external_addresses)
    if not found:
        raise ConfigError(
            f"machine {machine.name}: has no address; delete it and register it again with --internal-address"
        )
    return found


def kubeconfig(token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": f"https://{ENDPOINT}:{API_PORT}",
                    "certificate-authority": f"{CONFIG_DIR}/ca.crt",
                },
            }
        ],
        "users": [{"name": "nodes", "user": {"token": token}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "nodes"}}],
        "current-context": "default",
    }


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True)


def documents(*objects: Object) -> str:
    """A YAML stream; JSON is valid YAML."""
    return "\n---\n".join(as_json(each) for each in objects) + "\n"
