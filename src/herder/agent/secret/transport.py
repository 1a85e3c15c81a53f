"""HTTP and HTTPS connections, with in-memory certificates and proxies from the environment."""

import base64
import http.client
import os
import select
import socket
import ssl
import tempfile
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import SplitResult, unquote, urlsplit

_PARTIAL_CHAIN = 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: trust the given certificates even if they are no roots
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # OpenSSL error codes for unknown issuers


def tls_context(
    ca: bytes = b"", insecure: bool = False, cert: bytes = b"", key: bytes = b"", system: bool = False
) -> ssl.SSLContext:
    """Trust `ca`, or the system's CAs if there is none; both with `system`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(ssl, "TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    else:  # before Python 3.7
        context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
    context.verify_flags |= _PARTIAL_CHAIN
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif system or not ca:
        context.load_default_certs()
    if ca and not insecure:
        context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
    if cert and key:
        # certificates can only be loaded from files; 0600, deleted at once
        with tempfile.NamedTemporaryFile() as stream:
            stream.write(cert.rstrip() + b"\n" + key)
            stream.flush()
            context.load_cert_chain(stream.name)
    return context


def is_unknown_authority(error: BaseException) -> bool:
    if not isinstance(error, ssl.SSLError):
        return False
    code = getattr(error, "verify_code", None)
    return error.reason == "CERTIFICATE_VERIFY_FAILED" and (code is None or code in _UNKNOWN_AUTHORITY)


def has_input(connection: http.client.HTTPConnection) -> bool:
    """Whether data or EOF is readable."""
    return connection.sock is not None and bool(select.select([connection.sock], [], [], 0)[0])


def connect(
    url: str,
    timeout: Optional[float],
    context: Optional[ssl.SSLContext] = None,
    tls_name: str = "",
    proxy: Optional[str] = None,
) -> http.client.HTTPConnection:
    """Return a connection that connects on first use. `proxy` None: from the environment; "": none."""
    target = urlsplit(url)
    host, port = target.hostname or "", target.port or (443 if target.scheme == "https" else 80)
    through = proxy_for(url, os.environ) if proxy is None else proxy
    connection: http.client.HTTPConnection
    via = urlsplit(through)
    if target.scheme == "https" and through:
        connection = _Secure(via.hostname or "", via.port or 80, timeout, context or tls_context(), tls_name or host)
        connection.set_tunnel(host, port, headers=_proxy_authorization(via))
    elif target.scheme == "https":
        connection = _Secure(host, port, timeout, context or tls_context(), tls_name or host)
    elif through:
        connection = _ByProxy(via, f"http://{target.netloc}", timeout)
    else:
        connection = _Plain(host, port, timeout=timeout)
    return connection


class _SingleWrite(http.client.HTTPConnection):
    """Sends head and body of a request in one write, which wakes the peer once."""

    _held: Optional[List[bytes]] = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        held = self._held = []
        try:
            super().request(*args, **kwargs)
        finally:
            self._held = None
        self.send(b"".join(held))

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _Plain(_SingleWrite):
    def connect(self) -> None:
        super().connect()
        _keep_alive(self.sock)


class _ByProxy(_Plain):
    """Requests full URLs from a proxy, for plain HTTP."""

    def __init__(self, proxy: SplitResult, base: str, timeout: Optional[float]) -> None:
        super().__init__(proxy.hostname or "", proxy.port or 80, timeout=timeout)
        self._base = base
        self._more = _proxy_authorization(proxy)

    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        super().putrequest(method, self._base + url, *args, **kwargs)
        for name, value in self._more.items():
            self.putheader(name, value)


class _Secure(_SingleWrite, http.client.HTTPSConnection):
    def __init__(self, host: str, port: int, timeout: Optional[float], context: ssl.SSLContext, tls_name: str) -> None:
        super().__init__(host, port, timeout=timeout, context=context)
        self._trust = context
        self._name = tls_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        _keep_alive(self.sock)
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=self._name)


def _keep_alive(connection: socket.socket) -> None:
    """Enable TCP keepalive: a dead peer is noticed within 90 seconds."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 45), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _proxy_authorization(proxy: SplitResult) -> Dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


# --- proxies -------------------------------------------------------------------------------------------------------


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """Return the proxy URL, or "". Localhost is never proxied."""
    target = urlsplit(url)
    name = f"{target.scheme}_proxy"
    proxy = environment.get(name.upper()) or environment.get(name) or ""
    host, port = (target.hostname or "").lower(), target.port or (443 if target.scheme == "https" else 80)
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _is_here(host) or any(_matches(each.strip(), host, port) for each in exceptions.split(",")):
        return ""
    return proxy if "://" in proxy else "http://" + proxy


def _is_here(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches(exception: str, host: str, port: int) -> bool:
    exception = exception.lower()
    if not exception:
        return False
    if exception == "*":
        return True
    name, colon, wanted_port = exception.rpartition(":")
    if colon and wanted_port.isdigit() and "]" not in wanted_port and ":" not in name.strip("[]"):
        if int(wanted_port) != port:
            return False
        exception = name
    address = _address(host)
    if address is not None:
        import ipaddress

        try:
            return address in ipaddress.ip_network(exception.strip("[]"), strict=False)
        except ValueError:
            return False
    suffix = exception.lstrip("*")
    return host == suffix.lstrip(".") or host.endswith("." + suffix.lstrip("."))


def _address(host: str) -> Any:
    """Parse an IP address; None for a name. The module is imported on first use."""
    if not host or not (host[0].isdigit() or ":" in host):
        return None
    import ipaddress

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
