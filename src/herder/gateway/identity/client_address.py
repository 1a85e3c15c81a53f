"""Client address of a request, also behind trusted proxies.

Clients can send any X-Forwarded-For, so it counts only if the connection comes from a proxy in the setting
`trusted-proxies`. The last address that is not such a proxy counts: everything before it was written by the client.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from herder.api.settings import split_networks
from herder.engine.wire import Request

HEADER = "x-forwarded-for"
_MOST_ADDRESSES = 32

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def source_of(request: Request, trusted_proxies: str) -> str:
    proxies = _networks(trusted_proxies)
    if not proxies or not _is_proxy(request.remote, proxies):
        return request.remote
    forwarded = request.headers.get(HEADER, "").split(",")[-_MOST_ADDRESSES:]
    for address in (each.strip() for each in reversed(forwarded)):
        if not _is_address(address):
            break
        if not _is_proxy(address, proxies):
            return address
    return request.remote


@lru_cache(maxsize=4)
def _networks(setting: str) -> Sequence[Network]:
    try:
        return split_networks(setting)
    except ValueError:
        return ()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_proxy(text: str, proxies: Sequence[Network]) -> bool:
    if not _is_address(text):
        return False
    parsed = ipaddress.ip_address(text)
    address = (parsed.ipv4_mapped or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed
    return any(address in network for network in proxies)
