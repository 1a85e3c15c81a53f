"""What an agent tells of its cluster when it registers: decoded from a stranger, so every part of it is checked."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any

from cryptography import x509

MOST_BYTES = 64 * 1024
_MOST_TOKEN = 16 * 1024
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
"""Addresses at which clouds hand credentials to whoever asks, besides the link-local ones."""


class BadParameters(ValueError):
    """The text names the field, and never repeats what was in it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How the API server of an agent's cluster is reached, through the agent's tunnel."""

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
    if len(header) > MOST_BYTES:
        raise BadParameters(f"X-API-Tunnel-Params: longer than {MOST_BYTES} bytes")
    try:
        answer = json.loads(base64.b64decode(header, validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise BadParameters("X-API-Tunnel-Params: not JSON in base64") from None
    cluster = answer.get("cluster") if isinstance(answer, dict) else None
    if not isinstance(cluster, dict):
        raise BadParameters("X-API-Tunnel-Params: cluster: required")
    address, token, ca = (_text(cluster, name) for name in ("address", "token", "caCert"))
    if not _TOKEN.fullmatch(token) or len(token) > _MOST_TOKEN:
        raise BadParameters("X-API-Tunnel-Params: cluster.token: not a bearer token")
    return Parameters(checked_address(address), token, _certificates(ca))


def _text(cluster: dict[str, Any], name: str) -> str:
    value = cluster.get(name)
    if not isinstance(value, str) or not value:
        raise BadParameters(f"X-API-Tunnel-Params: cluster.{name}: required")
    return value


def checked_address(address: str) -> str:
    """Requests with a credential are sent there: nothing that hands out credentials itself may be behind it."""
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
            raise BadParameters("X-API-Tunnel-Params: cluster.address: no API server lives there") from None
        return address
    if (known.version == 6) != (bare != host) or "%" in bare:
        raise BadParameters("X-API-Tunnel-Params: cluster.address: IPv6 in brackets, IPv4 without")
    inner = getattr(known, "ipv4_mapped", None) or known
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified or str(inner) in _METADATA_SERVICES:
        raise BadParameters("X-API-Tunnel-Params: cluster.address: no API server lives there")
    return address


def _looks_like_number(host: str) -> bool:
    """Resolvers read 2852039166 and 0xa9fea9fe as IP addresses."""
    last = host.rpartition(".")[2].lower()
    return last.isdecimal() or last.startswith("0x")


def _certificates(encoded: str) -> str:
    try:
        pem = base64.b64decode(encoded, validate=True)
        found = x509.load_pem_x509_certificates(pem)
    except (binascii.Error, ValueError):
        raise BadParameters("X-API-Tunnel-Params: cluster.caCert: not certificates in PEM, in base64") from None
    if b"PRIVATE KEY" in pem or not found or not pem.isascii():  # TLS libraries load ASCII alone
        raise BadParameters("X-API-Tunnel-Params: cluster.caCert: must hold certificates and nothing else")
    return pem.decode("ascii")
