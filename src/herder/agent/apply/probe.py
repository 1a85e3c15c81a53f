"""Run an HTTP probe once: a 2xx response is a success, anything else a failure with a reason."""

import http.client
import os
import ssl
from typing import Tuple
from urllib.parse import urlsplit

from herder.agent.core.plan import Probe
from herder.agent.secret import transport

_MAX_TIMEOUT = 60.0  # a probe without timeout would block all others


def ask(probe: Probe) -> Tuple[bool, str]:
    if not probe.url.startswith(("http://", "https://")):
        return False, f"httpGet.url must begin with http:// or https://, found {probe.url!r}"
    try:
        try:
            return _ask(probe, False)
        except ssl.SSLError as error:
            if not probe.ca_cert or not transport.is_unknown_authority(error):
                raise
            return _ask(probe, True)  # also trust the system's CAs, which are slow to load
    except (OSError, ValueError, http.client.HTTPException) as error:
        return False, f"{type(error).__name__}: {error}"


def _ask(probe: Probe, system: bool) -> Tuple[bool, str]:
    target = urlsplit(probe.url)
    context = _context(probe, system) if target.scheme == "https" else None
    connection = transport.connect(probe.url, probe.timeout or _MAX_TIMEOUT, context, proxy="")
    try:
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        headers = {"User-Agent": "kube-probe/herder", "Accept": "*/*", "Connection": "close"}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        if 200 <= response.status < 300:
            return True, ""
        return False, f"HTTP {response.status} {response.reason}".strip()
    finally:
        connection.close()


def _context(probe: Probe, system: bool) -> ssl.SSLContext:
    """Build the TLS context; certificate files that do not exist yet are skipped."""
    cert, key = _read(probe.client_cert), _read(probe.client_key)
    return transport.tls_context(_read(probe.ca_cert), probe.insecure, cert, key, system)


def _read(path: str) -> bytes:
    if not path or not os.path.exists(path):
        return b""
    with open(path, "rb") as stream:
        return stream.read()
