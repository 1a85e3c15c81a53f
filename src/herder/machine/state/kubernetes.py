"""Read and replace a single Secret, using only the standard library.

Hundreds of these processes start at once on a small host, for a few requests each: the asynchronous client would cost
more than everything else.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from herder.engine.client import kubeconfig
from herder.engine.client.kubeconfig import KubeconfigError, RestConfig
from herder.machine.errors import MachineError, Unreachable

Secret = dict[str, Any]

REQUEST_SECONDS = 30.0
_MOST_BYTES = 16 << 20  # ten times the limit of an object
TIMEOUT_SECONDS = 300.0  # a server that restarts or fails over is back by then
_NO_USE_IN_TRYING = (ssl.SSLCertVerificationError, FileNotFoundError)
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


_NEVER_MADE = (
    "create this Secret for the machine state, or select another one with --secret-name and --secret-namespace"
)
_VANISHED = "it was deleted during an operation; check the provider for an instance that is left over"


class Conflict(Exception):
    """The Secret has changed since it was read."""


class SecretClient:
    """GET and PUT of one Secret, with retries while the server is unreachable."""

    def __init__(
        self, connection: RestConfig, namespace: str, name: str, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.namespace, self.name = namespace, name
        self._connection = connection
        self._path = f"{urlsplit(connection.server).path}/api/v1/namespaces/{namespace}/secrets/{name}"
        self._pause = pause
        self._was_there = False
        self._open: http.client.HTTPConnection | None = None

    def read(self) -> Secret:
        return self._request("GET", None)

    def replace(self, secret: Secret) -> Secret:
        """Replace the Secret; raises `Conflict` if its resourceVersion is outdated.

        If a response is lost, the PUT is repeated and may conflict with itself: read the Secret to find out.
        """
        return self._request("PUT", json.dumps(secret).encode())

    def replace_encoded(self, body: bytes, content_type: str) -> Secret:
        """Replace a Secret that another client encoded, such as in protobuf."""
        return self._request("PUT", body, content_type)

    def close(self) -> None:
        """Close until the next request: creating a machine takes minutes."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _request(self, method: str, body: bytes | None, content_type: str = "application/json") -> Secret:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        pause = FIRST_PAUSE
        while True:
            try:
                status, content = self._exchange(method, body, content_type)
                if status < 500 and status != 429:
                    return self._understood(method, status, content)
                trouble = f"answers {status} {_message(content)}"
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if isinstance(error, _NO_USE_IN_TRYING):
                    raise self._unreachable(str(error)) from error
                trouble = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise self._unreachable(trouble)
            self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _unreachable(self, trouble: str) -> Unreachable:
        return Unreachable(
            f"cannot reach the API server {self._connection.server}: {trouble}",
            "check that it is running and that --kubeconfig is correct",
        )

    def _exchange(self, method: str, body: bytes | None, content_type: str) -> tuple[int, bytes]:
        if self._open is None:
            self._open = _connect(self._connection)
        headers = {"Accept": "application/json", "User-Agent": "herder-machine"}
        if authorization := _authorization(self._connection):
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = content_type
        self._open.request(method, self._path, body, headers)
        answer = self._open.getresponse()
        content = answer.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise http.client.HTTPException(f"an answer of more than {_MOST_BYTES} bytes")
        return answer.status, content

    def _understood(self, method: str, status: int, content: bytes) -> Secret:
        if status == 200:
            self._was_there = True
            secret: Secret = json.loads(content)
            return secret
        what = f"Secret {self.namespace}/{self.name}"
        if status == 409:
            raise Conflict
        if status == 404:
            raise MachineError(f"{what} does not exist", _VANISHED if self._was_there else _NEVER_MADE)
        verb = "get" if method == "GET" else "update"
        if status in (401, 403):
            raise MachineError(f"{what}: {_message(content)}", f"allow this user to {verb} it")
        raise MachineError(f"{what}: cannot {verb} it: {status} {_message(content)}")


def connection_for(path: str) -> RestConfig:
    """Load `--kubeconfig`, or the pod's service account."""
    try:
        return kubeconfig.load(Path(path)) if path else kubeconfig.in_cluster()
    except KubeconfigError as error:
        raise MachineError(str(error), "pass a kubeconfig for the cluster of the Secret with --kubeconfig") from error


def _connect(connection: RestConfig) -> http.client.HTTPConnection:
    address = urlsplit(connection.proxy_url or connection.server)
    host, port = address.hostname or "", address.port
    if not connection.server.startswith("https:"):
        return http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS)
    made = _Https(connection, host, port)
    if connection.proxy_url:
        server = urlsplit(connection.server)
        made.set_tunnel(server.hostname or "", server.port or 443)
    return made


class _Https(http.client.HTTPSConnection):
    """Verifies the certificate against tls-server-name of the kubeconfig, if set."""

    def __init__(self, connection: RestConfig, host: str, port: int | None) -> None:
        from herder.engine.client.tls import tls_context

        self._tls = tls_context(connection)
        self._server_name = connection.tls_server_name or urlsplit(connection.server).hostname
        super().__init__(host, port, timeout=REQUEST_SECONDS, context=self._tls)

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


def _authorization(connection: RestConfig) -> str:
    if connection.token_file:  # read each time, because it is rotated
        return f"Bearer {Path(connection.token_file).read_text().strip()}"
    if connection.token:
        return f"Bearer {connection.token}"
    if connection.username:
        return "Basic " + base64.b64encode(f"{connection.username}:{connection.password}".encode()).decode()
    if connection.exec_plugin:
        import asyncio

        from herder.engine.client.credentials import credentials_for

        return asyncio.run(credentials_for(connection).header())
    return ""


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content).get("message") or "")
    except (ValueError, AttributeError):
        return content[:200].decode(errors="replace")
