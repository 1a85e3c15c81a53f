"""Logs of a pod, fetched from the node that runs it and passed through as they come."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from herder.engine.apiserver.calls import SubresourceRequest
from herder.engine.client.wire import Query, Response
from herder.engine.meta.errors import BadRequest, InternalError, StatusError, invalid, invalid_value
from herder.engine.meta.kinds import GroupKind, GroupResource, Object

if TYPE_CHECKING:
    import aiohttp

NODES = GroupResource("", "nodes")
_ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
_FLAGS = ("follow", "previous", "timestamps")
_NUMBERS = ("tailLines", "limitBytes", "sinceSeconds")
_CHUNK = 64 * 1024


class NodeLogs:
    """The `log` subresource, by a server that proves to nodes who it is; its certificate is made when first needed."""

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        self._make = tls
        self._tls: ssl.SSLContext | None = None

    async def log(self, call: SubresourceRequest) -> Object | Response:
        if self._tls is None:
            self._tls = self._make()
        return await _log(call, self._tls)


async def log(call: SubresourceRequest) -> Object | Response:
    return await _log(call, None)


async def _log(call: SubresourceRequest, tls: ssl.SSLContext | None) -> Object | Response:
    pod = call.parent_or_404()
    container = _container(pod, call)
    query = _query(call)
    node = pod.get("spec", {}).get("nodeName", "")
    if not node:  # nobody runs it yet, so nothing was said
        return Response(status=204)
    url = f"{_kubelet_url(node, call)}/containerLogs/{call.namespace}/{call.name}/{quote(container)}"
    return await _fetched(url, query, tls)


def _container(pod: Object, call: SubresourceRequest) -> str:
    spec, asked = pod.get("spec", {}), call.request.query.get("container")
    regular = [item["name"] for item in spec.get("containers") or ()]
    init = [item["name"] for item in spec.get("initContainers") or ()]
    debugging = [item["name"] for item in spec.get("ephemeralContainers") or ()]
    if not asked:
        if len(regular) == 1:
            return str(regular[0])
        said = f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(regular)}]"
        if init:
            said += f" or one of the init containers: [{' '.join(init)}]"
        raise BadRequest(said)
    if asked not in {*regular, *init, *debugging}:
        raise BadRequest(f"container {asked} is not valid for pod {call.name}")
    return asked


def _query(call: SubresourceRequest) -> Query:
    """The options, checked and in the form that kubelets know."""
    given = call.request.query
    items: list[tuple[str, str]] = []
    for key in _FLAGS:
        if key in given and given.get(key).lower() not in {"", "0", "false", "f"}:
            items.append((key, "true"))
    for key in _NUMBERS:
        if key not in given:
            continue
        value = given.get(key)
        if not value.lstrip("-").isdigit():
            raise BadRequest(f'strconv.ParseInt: parsing "{value}": invalid syntax')
        if int(value) < (0 if key == "tailLines" else 1):
            least = "greater than or equal to 0" if key == "tailLines" else "greater than 0"
            raise invalid(
                GroupKind("", "PodLogOptions"), call.name, [invalid_value(key, int(value), f"must be {least}")]
            )
        items.append((key, value))
    if "sinceTime" in given:
        items.append(("sinceTime", given.get("sinceTime")))
    return Query(items)


def _kubelet_url(name: str, call: SubresourceRequest) -> str:
    node = call.lookup(NODES, "", name)
    if node is None:
        raise InternalError(f'nodes "{name}" not found')
    status = node.get("status", {})
    addresses = {item.get("type"): item.get("address", "") for item in reversed(status.get("addresses") or [])}
    host = next((addresses[kind] for kind in _ADDRESS_TYPES if addresses.get(kind)), "")
    if not host:
        known = list(addresses.values())
        raise StatusError(f"no preferred addresses found; known addresses: {known}", code=500, reason="")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 10250
    return f"https://{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


async def _fetched(url: str, query: Query, tls: ssl.SSLContext | None) -> Response:
    import aiohttp

    # As the real server without a kubelet CA: the node was found in our own store, its certificate is its own.
    # What a node sends is passed on as it is, and of a refusal only its beginning is read.
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10), auto_decompress=False)
    try:
        answer = await session.get(f"{url}?{query}" if query.items else url, ssl=tls or False)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        await session.close()
        raise InternalError(f"Get {url}: {error}") from None
    content_type = answer.headers.get("Content-Type", "text/plain")
    if answer.status != 200:
        text = (await answer.content.read(4096)).decode("utf-8", "replace")
        answer.close()
        await session.close()
        if answer.status in {400, 404}:
            raise BadRequest(text.strip() or "the server rejected our request for an unknown reason")
        raise InternalError(f"the node answered {answer.status}: {text.strip()}")
    return Response(headers={"Content-Type": content_type}, stream=_passed_through(session, answer))


async def _passed_through(session: aiohttp.ClientSession, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.content.iter_chunked(_CHUNK):
            yield chunk
    finally:
        answer.close()
        await session.close()
