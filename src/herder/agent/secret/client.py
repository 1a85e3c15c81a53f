"""API client for a single Secret: read, watch, write."""

import base64
import http.client
import json
import ssl
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple
from urllib.parse import urlencode, urlsplit

from herder import __version__
from herder.agent.core import outputs
from herder.agent.core.events import Data, Secret
from herder.agent.secret import transport
from herder.agent.secret.kubeconfig import Access

_TIMEOUT = 30.0
_WATCH_SECONDS = 540
GONE = 410


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Unreachable(Exception):
    """No response, or an invalid one."""


class WatchEvent(NamedTuple):
    """An event of a watch."""

    kind: str  # ADDED, MODIFIED, DELETED, BOOKMARK
    version: str
    secret: Optional[Secret]


class Api:
    """Not thread-safe, except for watches, which have their own connections."""

    def __init__(self, access: Access, namespace: str, name: str) -> None:
        self._access = access
        self._base = urlsplit(access.server).path.rstrip("/")
        self._collection = f"{self._base}/api/v1/namespaces/{namespace}/secrets"
        self._name = name
        self._context = self._tls()
        self._connection: Optional[http.client.HTTPConnection] = None

    def check(self) -> None:
        """Check that the server responds."""
        self._get(f"{self._base}/version")

    def list(self) -> Tuple[Optional[Secret], str]:
        """Return the current Secret and the resourceVersion to watch from."""
        answer = self._get(f"{self._collection}?{urlencode(self._selector())}")
        version = str((answer.get("metadata") or {}).get("resourceVersion") or "")
        items = answer.get("items") or []
        return (_secret(items[0]) if items else None), version

    def get(self) -> Optional[Secret]:
        try:
            return _secret(self._get(f"{self._collection}/{self._name}"))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def update(self, secret: Secret, data: Data) -> Secret:
        body: Dict[str, Any] = dict(secret.raw)
        body["data"] = {key: outputs.to_base64(value) for key, value in data.items()}
        return _secret(self._ask("PUT", f"{self._collection}/{self._name}", json.dumps(body).encode()))

    def watch(self, version: str) -> Iterator[WatchEvent]:
        """Watch until the server ends it; raise ApiError with status GONE if the version is too old."""
        query = self._selector()
        query.update(watch="true", allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=_WATCH_SECONDS)
        connection = self._connect(_WATCH_SECONDS + _TIMEOUT)
        try:
            connection.request("GET", f"{self._collection}?{urlencode(query)}", headers=self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise _error(response.status, response.read())
            while True:
                line = response.readline()
                if not line:
                    return
                yield _seen(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unreachable(_reason(error)) from error
        finally:
            connection.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _selector(self) -> Dict[str, Any]:
        return {"fieldSelector": f"metadata.name={self._name}"}

    def _get(self, path: str) -> Dict[str, Any]:
        """Retry once on a connection that the server closed meanwhile."""
        kept = self._connection is not None
        try:
            return self._ask("GET", path)
        except Unreachable:
            if not kept:
                raise
            return self._ask("GET", path)

    def _ask(self, method: str, path: str, body: Optional[bytes] = None) -> Dict[str, Any]:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection = self._kept()
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_reason(error)) from error
        if status >= 300:
            raise _error(status, content)
        what = f"{method} {path.partition('?')[0]}"
        try:
            value = json.loads(content.decode("utf-8"))
        except ValueError as error:
            raise Unreachable(f"{what}: the answer is not JSON") from error
        if not isinstance(value, dict):
            raise Unreachable(f"{what}: the answer is no object")
        return value

    def _kept(self) -> http.client.HTTPConnection:
        """Return the idle connection, unless the server has closed it: nothing else could be readable."""
        if self._connection is not None and transport.has_input(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._connect(_TIMEOUT)
        return self._connection

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        access = self._access
        proxy = access.proxy or None
        return transport.connect(access.server, timeout, self._context, access.tls_name, proxy)

    def _headers(self) -> Dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": f"herder-agent/{__version__}"}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        elif self._access.username:
            pair = f"{self._access.username}:{self._access.password}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        return headers

    def _tls(self) -> Optional[ssl.SSLContext]:
        access = self._access
        if not access.server.startswith("https:"):
            return None
        return transport.tls_context(access.ca, access.insecure, access.client_cert, access.client_key)


def usable(access: Access, namespace: str, name: str, strict: bool) -> Access:
    """Return access that works. Unless `strict`, fall back to the system's CAs if the given CA does not match."""
    try:
        _check(access, namespace, name)
    except Unreachable as error:
        cause = error.__cause__
        if strict or not access.ca or cause is None or not transport.is_unknown_authority(cause):
            raise
        access = access._replace(ca=b"")
        _check(access, namespace, name)
    return access


def _check(access: Access, namespace: str, name: str) -> None:
    api = Api(access, namespace, name)
    try:
        api.check()
    finally:
        api.close()


def _secret(raw: Dict[str, Any]) -> Secret:
    metadata = raw.get("metadata") or {}
    data = {key: outputs.from_base64(value) for key, value in (raw.get("data") or {}).items()}
    kept = {key: value for key, value in raw.items() if key != "data"}  # without a second copy of the data
    kept.update(apiVersion="v1", kind="Secret")
    return Secret(str(metadata.get("uid") or ""), str(metadata.get("resourceVersion") or ""), data, kept)


def _seen(line: bytes) -> WatchEvent:
    event = json.loads(line.decode("utf-8"))
    kind, value = str(event["type"]), event["object"]
    if kind == "ERROR":
        raise ApiError(int(value.get("code") or 500), str(value.get("message") or value.get("reason") or ""))
    version = str((value.get("metadata") or {}).get("resourceVersion") or "")
    return WatchEvent(kind, version, None if kind == "BOOKMARK" else _secret(value))


def _error(status: int, content: bytes) -> ApiError:
    try:
        message = str(json.loads(content.decode("utf-8")).get("message") or "")
    except (ValueError, AttributeError):
        message = ""
    return ApiError(status, message or http.client.responses.get(status, "refused"))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
