"""Whether machines and clusters can reach the manager at the URL that they are given."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from herder.api.settings import SERVER_URL


def server_url_problem(server_url: str, clients: str) -> str:
    """Return why `clients` on other hosts cannot reach the manager; "" if the URL does not rule it out.

    Only loopback addresses are certain: no other host can connect to them.
    """
    if not _is_loopback(server_url):
        return ""
    return (
        f"setting {SERVER_URL}: {server_url} is a loopback address, which {clients} cannot reach; set it to an address "
        "that they reach, for example with `herder up --listen 0.0.0.0:7443 --advertise ADDRESS`"
    )


def _is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:  # a host name, or no URL
        return False
