"""Digests of the inputs of plans.

They are stored on plan Secrets, and a plan is rendered again when its digest changes. The names below are therefore
part of the stored format: they stay when a field of the dataclasses is renamed. Leave a new input out while it has its
default, so that adding one does not render the plans of existing clusters again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from herder.api.management.manifest import Agent

if TYPE_CHECKING:
    from herder.controllers.planner.distributions.interface import ClusterInputs, EncryptionKeys, MachineInputs


def cluster_digest(inputs: ClusterInputs) -> str:
    return _sha256({
        "namespace": inputs.namespace,
        "name": inputs.name,
        "management_name": inputs.management_name,
        "version": inputs.version,
        "spec": inputs.spec,
        "annotations": inputs.annotations,
        "config_generation": inputs.config_generation,
        "initialized": inputs.initialized,
        "server_token": inputs.server_token,
        "agent_token": inputs.agent_token,
        "authorities": {
            name: {"certificate": each.certificate, "key": each.key} for name, each in inputs.authorities.items()
        },
        "agent": _agent(inputs.agent) if inputs.agent is not None else None,
        "server_certificates": inputs.server_certificates,
        "installer_image": inputs.installer_image,
        "default_registry": inputs.default_registry,
        "prime": inputs.prime,
        "referenced": {
            str(reference): {"annotations": each.annotations, "data": each.data, "type": each.type}
            for reference, each in inputs.referenced.items()
        },
        "servers": inputs.servers,
        **({"encryption": _encryption(inputs.encryption)} if inputs.encryption is not None else {}),
    })  # fmt: skip


def machine_digest(inputs: MachineInputs) -> str:
    return _sha256({
        "name": inputs.name,
        "uid": inputs.uid,
        "roles": {
            "etcd": inputs.roles.etcd,
            "control_plane": inputs.roles.control_plane,
            "worker": inputs.roles.worker,
        },
        "is_init": inputs.is_init,
        "join_url": inputs.join_url,
        "windows": inputs.windows,
        "labels": inputs.labels,
        "node_name": inputs.node_name,
        "node_labels": inputs.node_labels,
        "node_taints": inputs.node_taints,
        "internal_addresses": inputs.internal_addresses,
        "external_addresses": inputs.external_addresses,
        "ipv6_address": inputs.ipv6_address,
        "driver": inputs.driver,
        "join_url_by_hand": inputs.join_url_autoset_disabled,
        **({"reports_agent": True} if inputs.reports_agent else {}),
    })  # fmt: skip


def _encryption(encryption: EncryptionKeys) -> dict[str, Any]:
    return {"loaded": encryption.loaded, "keys": {str(each): key for each, key in encryption.keys.items()}}


def _agent(agent: Agent) -> dict[str, Any]:
    return {
        "server_url": agent.server_url,
        "token": agent.token,
        "ca_checksum": agent.ca_checksum,
        "image": agent.image,
        "strict": agent.strict,
        "environment": agent.environment,
        "comes_first": agent.pre_bootstrap,
        **({"customization": agent.customization} if agent.customization else {}),
    }


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
