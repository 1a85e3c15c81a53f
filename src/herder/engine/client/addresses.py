"""Addresses that no workload cluster may have: this host, link-local networks and cloud metadata services."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_NETWORKS = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # Linux connects 0.0.0.0 to itself
            "100.100.100.200/32",  # metadata services that are not link-local: Alibaba, Azure, Oracle, AWS
            "168.63.129.16/32",
            "192.0.0.192/32",
            "fd00:ec2::254/128",
        ),
    )
)
_NAT64 = ip_network("64:ff9b::/96")


def is_local(address: str) -> bool:
    """Return whether an address reaches this host or a metadata service, also as IPv4 embedded in IPv6."""
    found = ip_address(address.partition("%")[0])
    embedded = _embedded(found)
    if embedded is not None and is_local(str(embedded)):
        return True
    return (
        found.is_loopback
        or found.is_link_local
        or found.is_unspecified
        or found.is_multicast
        or any(found.version == network.version and found in network for network in _NETWORKS)
    )


def is_elsewhere(address: str) -> bool:
    return not is_local(address)


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64 or int(address) >> 32 == 0:  # or IPv4-compatible, such as ::127.0.0.1
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
