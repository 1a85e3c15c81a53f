"""Configure node-ip, node-external-ip, advertise-address and tls-san from a machine's addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

from herder.controllers.planner.distributions.interface import MachineInputs


def add_addresses(config: dict[str, Any], machine: MachineInputs) -> None:
    if machine.driver == "pod":
        return  # the driver reports another Pod's address; the distribution detects its own
    family = _first_family(config)
    internal = list(machine.internal_addresses)
    if machine.driver == "digitalocean" and not internal:
        internal = list(machine.external_addresses)  # its public address cannot be disabled
    node = _sorted_by_family(_distinct([*internal, machine.ipv6_address]), family)
    config["node-ip"] = node
    if not config.get("cloud-provider-name") and node:  # a cloud provider sets external addresses itself
        external = [
            address for address in machine.external_addresses if address not in node and not _is_link_local(address)
        ]
        config["node-external-ip"] = _sorted_by_family(_distinct(external), family)
    _advertise(config, machine)


def _advertise(config: dict[str, Any], machine: MachineInputs) -> None:
    """Servers with external addresses advertise the internal one and add the external ones to their certificate."""
    node, external = config.get("node-ip") or [], config.get("node-external-ip") or []
    if machine.roles.only_worker or not node or not external or sorted(node) == sorted(external):
        return
    config["advertise-address"] = node[0]
    config["tls-san"] = _distinct([*as_list(config.get("tls-san")), *external])


def as_list(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value]
    return [str(value)] if value else []


def _distinct(addresses: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(address for address in addresses if address))


def _first_family(config: dict[str, Any]) -> int:
    """IP version of the first service CIDR: 4, 6, or 0 if there is none."""
    for text in as_list(config.get("service-cidr")):
        for network in filter(None, (part.strip() for part in text.split(","))):
            try:
                return ipaddress.ip_network(network, strict=False).version
            except ValueError:
                return 0
    return 0


def _sorted_by_family(addresses: list[str], family: int) -> list[str]:
    """Addresses of the family first, then the others, then host names."""
    if not family:
        return addresses
    return sorted(addresses, key=lambda address: {family: 0, 0: 2}.get(_family(address), 1))


def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def _is_link_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_link_local
    except ValueError:
        return False
