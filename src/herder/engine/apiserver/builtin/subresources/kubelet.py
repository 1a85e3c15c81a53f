"""The log subresource of pods: stream logs from the kubelet."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from herder.engine.apiserver.request.handler_call import SubresourceRequest
from herder.engine.meta.errors import BadRequest, InternalError, StatusError, invalid, invalid_value
from herder.engine.meta.kinds import GroupKind, GroupResource, Object
from herder.engine.wire import Query, Response

if TYPE_CHECKING:
    import aiohttp

NODES = GroupResource("", "nodes")
_ADDRESS_TYPES = ("InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS")
_FLAGS = ("follow", "previous", "timestamps")
_NUMBERS = ("tailLines", "limitBytes", "sinceSeconds")
_CHUNK = 64 * 1024


class NodeLogs:
    """Fetches logs with a client certificate, which is created on first use."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], may_dial: Callable[[str], bool] | None = None) -> None:
        """`may_dial` is asked for each address before it is dialed; None allows all."""
        self._create_tls = tls
        self._may_dial = may_dial
        self._tls: ssl.SSLContext | None = None

    async def log(self, call: SubresourceRequest) -> Object | Response:
        if self._tls is None:
            self._tls = self._create_tls()
        return await _log(call, self._tls, self._may_dial)


async def log(call: SubresourceRequest) -> Object | Response:
    """Fetch logs without a client certificate; servers with a PKI use NodeLogs."""
    return await _log(call, None)


async def _log(
    call: SubresourceRequest, tls: ssl.SSLContext | None, may_dial: Callable[[str], bool] | None = None
) -> Object | Response:
    pod = call.parent_or_404()
    container = _container(pod, call)
    query = _query(call)
    node = pod.get("spec", {}).get("nodeName", "")
    if not node:  # not scheduled yet: no logs
        return Response(status=204)
    url = f"{_kubelet_url(node, call)}/containerLogs/{call.namespace}/{call.name}/{quote(container)}"
    return await _fetch_logs(url, query, tls, may_dial)


def _container(pod: Object, call: SubresourceRequest) -> str:
    spec, requested = pod.get("spec", {}), call.request.query.get("container")
    regular = [item["name"] for item in spec.get("containers") or ()]
    init = [item["name"] for item in spec.get("initContainers") or ()]
    debugging = [item["name"] for item in spec.get("ephemeralContainers") or ()]
    if not requested:
        if len(regular) == 1:
            return str(regular[0])
        message = f"a container name must be specified for pod {call.name}, choose one of: [{' '.join(regular)}]"
        if init:
            message += f" or one of the init containers: [{' '.join(init)}]"
        raise BadRequest(message)
    if requested not in {*regular, *init, *debugging}:
        raise BadRequest(f"container {requested} is not valid for pod {call.name}")
    return requested


def _query(call: SubresourceRequest) -> Query:
    """Validate the options and convert them to the kubelet's."""
    given = call.request.query
    items = [(key, "true") for key in _FLAGS if given.enabled(key)]
    for key in _NUMBERS:
        if key not in given:
            continue
        value = given.get(key)
        if not value.lstrip("-").isdigit():
            raise BadRequest(f'strconv.ParseInt: parsing "{value}": invalid syntax')
        if int(value) < (0 if key == "tailLines" else 1):
            bound = "greater than or equal to 0" if key == "tailLines" else "greater than 0"
            raise invalid(
                GroupKind("", "PodLogOptions"), call.name, [invalid_value(key, int(value), f"must be {bound}")]
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


async def _fetch_logs(
    url: str, query: Query, tls: ssl.SSLContext | None, may_dial: Callable[[str], bool] | None
) -> Response:
    import aiohttp

    from herder.engine.client.http import socket_factory

    # Like kube-apiserver without a kubelet CA, accept the kubelet's self-signed certificate: the node's address comes
    # from our own store. The response is passed through; of an error only the beginning is read. Redirects are not
    # followed: they would lead this client's certificate, and the caller, to any server that this host can reach.
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(socket_factory=socket_factory(may_dial)),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        auto_decompress=False,
    )
    try:
        response = await session.get(f"{url}?{query}" if query.items else url, ssl=tls or False, allow_redirects=False)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        await session.close()
        raise InternalError(f"Get {url}: {error}") from None
    content_type = response.headers.get("Content-Type", "text/plain")
    if response.status != 200:
        text = (await response.content.read(4096)).decode("utf-8", "replace")
        response.close()
        await session.close()
        if response.status in {400, 404}:
            raise BadRequest(text.strip() or "the server rejected our request for an unknown reason")
        raise InternalError(f"the kubelet returned {response.status}: {text.strip()}")
    return Response(headers={"Content-Type": content_type}, stream=_stream_logs(session, response))


async def _stream_logs(session: aiohttp.ClientSession, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_chunked(_CHUNK):
            yield chunk
    finally:
        response.close()
        await session.close()
