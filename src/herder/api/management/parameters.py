"""Parse and validate the cluster parameters that an agent sends when it registers; the input is untrusted."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

from cryptography import x509

MAX_BYTES = 64 * 1024
_MAX_TOKEN = 16 * 1024
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*"
)
_TOKEN = re.compile(r"[!-~]+")
_METADATA_SERVICES = {
    "metadata",
    "metadata.google.internal",
    "instance-data",
    "instance-data.ec2.internal",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
}
"""Addresses of cloud metadata services, which return credentials, besides link-local ones."""


class BadParameters(ValueError):
    """A parameter is invalid; the message names the field, and never quotes its value."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to reach the API server of an agent's cluster through its tunnel."""

    address: str  # host:port
    token: str
    ca: str  # PEM

    def __repr__(self) -> str:
        return f"Parameters(address={self.address!r})"

    def encoded(self) -> str:
        ca = base64.b64encode(self.ca.encode()).decode()
        status = {"cluster": {"address": self.address, "token": self.token, "caCert": ca}}
        return base64.b64encode(json.dumps(status).encode()).decode()

    @property
    def encoded_ca(self) -> str:
        return base64.b64encode(self.ca.encode()).decode()


def decode(header: str) -> Parameters:
    if len(header) > MAX_BYTES:
        raise BadParameters(f"X-API-Tunnel-Params: longer than {MAX_BYTES} bytes")
    try:
        answer = json.loads(base64.b64decode(header, validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise BadParameters("X-API-Tunnel-Params: not JSON in base64") from None
    cluster = answer.get("cluster") if isinstance(answer, dict) else None
    if not isinstance(cluster, dict):
        raise BadParameters("X-API-Tunnel-Params: cluster: required")
    address, token, ca = (_text(cluster, name) for name in ("address", "token", "caCert"))
    if not _TOKEN.fullmatch(token) or len(token) > _MAX_TOKEN:
        raise BadParameters("X-API-Tunnel-Params: cluster.token: not a bearer token")
    return Parameters(checked_address(address), token, _certificates(ca))


def _text(cluster: dict[str, Any], name: str) -> str:
    value = cluster.get(name)
    if not isinstance(value, str) or not value:
        raise BadParameters(f"X-API-Tunnel-Params: cluster.{name}: required")
    return value


def checked_address(address: str) -> str:
    """Validate the address: requests with a credential are sent to it, so it must not be a metadata service."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or not 0 < int(port[:6]) < 65536:
        raise BadParameters("X-API-Tunnel-Params: cluster.address: must be host:port")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        known = ipaddress.ip_address(bare)
    except ValueError:
        if not _HOST.fullmatch(host) or bare != host or _looks_like_number(host):
            raise BadParameters("X-API-Tunnel-Params: cluster.address: not a host name or IP address") from None
        if host.lower() in _METADATA_SERVICES:
            raise BadParameters(
                "X-API-Tunnel-Params: cluster.address: metadata and link-local addresses are not allowed"
            ) from None
        return address
    if (known.version == 6) != (bare != host) or "%" in bare:
        raise BadParameters("X-API-Tunnel-Params: cluster.address: IPv6 in brackets, IPv4 without")
    inner = getattr(known, "ipv4_mapped", None) or known
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified or str(inner) in _METADATA_SERVICES:
        raise BadParameters("X-API-Tunnel-Params: cluster.address: metadata and link-local addresses are not allowed")
    return address


def _looks_like_number(host: str) -> bool:
    """Whether a resolver would read the host as an IP address, such as 2852039166 or 0xa9fea9fe."""
    last = host.rpartition(".")[2].lower()
    return last.isdecimal() or last.startswith("0x")


def _certificates(encoded: str) -> str:
    try:
        pem = base64.b64decode(encoded, validate=True)
        found = x509.load_pem_x509_certificates(pem)
    except (binascii.Error, ValueError):
        raise BadParameters("X-API-Tunnel-Params: cluster.caCert: must be base64-encoded PEM certificates") from None
    if b"PRIVATE KEY" in pem or not found or not pem.isascii():  # TLS libraries only load ASCII
        raise BadParameters("X-API-Tunnel-Params: cluster.caCert: must contain only certificates")
    return pem.decode("ascii")
