"""Pull manifests and layers from a registry endpoint, verified by digest."""

import base64
import http.client
import json
import os
import re
import ssl
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple
from urllib.parse import urlencode, urljoin, urlsplit

from herder import __version__
from herder.agent.images import blobs
from herder.agent.images.blobs import Descriptor, LayerFile
from herder.agent.images.deadline import Deadline
from herder.agent.images.reference import ImageError, Reference
from herder.agent.images.registries import Credentials, Endpoint
from herder.agent.secret import transport

_TIMEOUT = 60.0
_SLOWEST = 32 << 10  # bytes per second; a mirror that is slower is passed over
_MOST_REDIRECTS = 5
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[!-~]+\Z")  # valid header value
_REDIRECTS = (301, 302, 303, 307, 308)


class Found(NamedTuple):
    digest: str  # of the manifest
    layers: List[Descriptor]


class Puller:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._authorization = ""
        self._context: Optional[ssl.SSLContext] = None

    def find(self, image: Reference, architecture: str, system: str) -> Found:
        digest, manifest = self._manifest(image.pinned, image.digest)
        for _ in range(blobs.DEEPEST_INDEX):
            if not blobs.is_index(manifest):
                break
            chosen = blobs.choose(manifest, architecture, system, str(image)).digest
            digest, manifest = self._manifest(chosen, chosen)
        return Found(digest, blobs.layers(manifest, str(image)))

    def fetch(self, image: Found, scratch: str) -> List[LayerFile]:
        """Download all layers; together they have the size limit of an image, because they are unpacked afterwards."""
        files, left = [], blobs.LARGEST_IMAGE
        for index, layer in enumerate(image.layers):
            path, name = os.path.join(scratch, f"layer-{index}"), f"layer {layer.digest}"
            with open(path, "wb") as stream, self._get(
                f"blobs/{layer.digest}", "*/*", layer.size if layer.size >= 0 else left
            ) as response:
                left = blobs.copy(response.read, stream, layer, name, left)
            files.append(LayerFile(path, name, ""))
        return files

    def _manifest(self, name: str, digest: str) -> Tuple[str, Dict[str, Any]]:
        """Return the manifest with its digest."""
        with self._get(f"manifests/{name}", _MANIFESTS) as response:
            content = response.read(blobs.LARGEST_MANIFEST)
        blobs.check(content, digest, f"manifest {name}")
        value = blobs.parsed(content, f"manifest {name}")
        if not isinstance(value, dict):
            raise ImageError(f"manifest {name}: no manifest")
        return digest or blobs.digest_of(content), value

    @contextmanager
    def _get(self, path: str, accept: str, size: int = blobs.LARGEST_MANIFEST) -> Iterator[http.client.HTTPResponse]:
        """Answer an authentication challenge once, and follow redirects without credentials."""
        url = f"{self._endpoint.url}/{self._endpoint.repository}/{path}"
        with self._request(url, accept, self._authorization, size=size) as response:
            challenge = response.getheader("WWW-Authenticate") or ""
            if response.status != 401 or not challenge:
                with self._followed(response, url, accept, size) as final:
                    yield final
                return
        self._authorization = self._answer(challenge)
        with self._request(url, accept, self._authorization, size=size) as response, self._followed(
            response, url, accept, size
        ) as final:
            yield final

    @contextmanager
    def _followed(
        self, response: http.client.HTTPResponse, url: str, accept: str, size: int, hops: int = 0
    ) -> Iterator[Any]:
        if response.status in _REDIRECTS:
            location = _joined(url, response.getheader("Location") or "")
            if hops >= _MOST_REDIRECTS:
                raise ImageError(f"{url}: too many redirects")
            if _drops_tls(url, location):
                raise ImageError(f"{url}: redirects to {location}, which is without TLS")
            with self._request(location, accept, "", size=size) as answer, self._followed(
                answer, location, accept, size, hops + 1
            ) as final:
                yield final
        elif response.status != 200:
            raise ImageError(f"{url}: {response.status} {_message(response)}")
        else:
            yield response

    @contextmanager
    def _request(
        self,
        url: str,
        accept: str,
        authorization: str,
        body: Optional[bytes] = None,
        size: int = blobs.LARGEST_MANIFEST,
    ) -> Iterator[http.client.HTTPResponse]:
        """`size` of the answer, at most: it must arrive in time, however slowly a hostile server sends it."""
        try:
            target = urlsplit(url)
            tls = self._tls(target.netloc) if target.scheme == "https" else None
            connection = transport.connect(url, _TIMEOUT, tls)
        except (ValueError, http.client.HTTPException) as error:
            raise ImageError(f"{_shown(url)}: {error}") from error
        headers = {"Accept": accept, "User-Agent": f"herder-agent/{__version__}"}
        if authorization:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            path = (target.path or "/") + (f"?{target.query}" if target.query else "")
            connection.request("GET" if body is None else "POST", path, body, headers)
            with _in_time(connection, _TIMEOUT + size / _SLOWEST, f"{target.scheme}://{target.netloc}"):
                yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ImageError(f"{target.scheme}://{target.netloc}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _tls(self, host: str) -> ssl.SSLContext:
        """Build the TLS context; the endpoint's certificates are used for the endpoint only."""
        if host != urlsplit(self._endpoint.url).netloc:
            return transport.tls_context()
        if self._context is None:
            tls = self._endpoint.tls
            ca = _read(tls.ca_file)
            self._context = transport.tls_context(
                ca, tls.insecure, _read(tls.cert_file), _read(tls.key_file), system=bool(ca)
            )
        return self._context

    # --- authentication ----------------------------------------------------------------------------------------------

    def _answer(self, challenge: str) -> str:
        scheme = challenge.split()[0].lower()
        credentials = self._endpoint.credentials
        if scheme == "basic":
            if not credentials.username:
                raise ImageError(f"{self._endpoint.url}: wants a password, and registries.yaml has none for it")
            return _basic(credentials)
        if scheme != "bearer":
            raise ImageError(f"{self._endpoint.url}: wants {scheme!r} authentication, which is not supported")
        return "Bearer " + self._token(dict(_CHALLENGE.findall(challenge)), credentials)

    def _token(self, challenge: Dict[str, str], credentials: Credentials) -> str:
        realm = challenge.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise ImageError(f"{self._endpoint.url}: its challenge names no realm to ask")
        if _drops_tls(self._endpoint.url, realm):
            raise ImageError(f"{self._endpoint.url}: its realm {realm} is without TLS; credentials are not sent there")
        query = {"service": challenge.get("service", ""), "scope": challenge.get("scope") or self._scope()}
        if credentials.identity_token:
            form = dict(query, grant_type="refresh_token", refresh_token=credentials.identity_token, client_id="herder")
            request = self._request(realm, "application/json", "", urlencode(form).encode())
        else:
            separator = "&" if "?" in realm else "?"
            known = _basic(credentials) if credentials.username else ""
            request = self._request(f"{realm}{separator}{urlencode(query)}", "application/json", known)
        with request as response:
            if response.status != 200:
                raise ImageError(f"{realm}: no token: {response.status} {_message(response)}")
            answer = blobs.parsed(response.read(1 << 20), f"the answer of {realm}")
        token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not _TOKEN.match(token):
            raise ImageError(f"{realm}: the answer has no token")
        return token

    def _scope(self) -> str:
        return f"repository:{self._endpoint.repository}:pull"


@contextmanager
def _in_time(connection: http.client.HTTPConnection, seconds: float, where: str) -> Iterator[None]:
    deadline = Deadline(connection.sock, seconds)
    try:
        yield
    except (ImageError, OSError, http.client.HTTPException):
        if deadline.is_over:
            raise ImageError(f"{where}: did not send its answer within {seconds:.0f} s") from None
        raise
    finally:
        deadline.cancel()


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise ImageError(f"{url}: redirects to {_shown(location)}: {error}") from None


def _shown(url: str) -> str:
    return repr(url[:200])


def _drops_tls(url: str, other: str) -> bool:
    return url.startswith("https://") and not other.startswith("https://")


def _basic(credentials: Credentials) -> str:
    pair = f"{credentials.username}:{credentials.password}".encode()
    return "Basic " + base64.b64encode(pair).decode()


def _message(response: http.client.HTTPResponse) -> str:
    try:
        errors = json.loads(response.read(1 << 16).decode("utf-8"))["errors"]
        return "; ".join(str(each.get("message") or each.get("code")) for each in errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return response.reason or ""


def _read(path: str) -> bytes:
    if not path:
        return b""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise ImageError(f"registries.yaml: {error}") from error
