"""The part of a kubelet that API servers dial: `GET /containerLogs/{namespace}/{pod}/{container}` over TLS.

Callers prove who they are with a certificate of the cluster's client CA, and the API server is asked whether they may
use this node, as a kubelet asks. Without that CA nothing is served.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from herder.engine.client.client import Client
from herder.engine.meta.errors import StatusError
from herder.engine.runner import logs
from herder.engine.runner.kinds import ACCESS_REVIEWS, Clock, parse_time
from herder.engine.runner.pods import Pod

_PERMITTED_FOR = 10.0  # seconds that an answer about a caller is remembered


class Kubelet:
    def __init__(
        self, client: Client, node: str, *, client_ca: bytes, clock: Clock, find: Callable[[str, str], Pod | None]
    ) -> None:
        self._client = client
        self._node = node
        self._client_ca = client_ca
        self._clock = clock
        self._find = find
        self._permitted: dict[tuple[str, ...], datetime] = {}
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.5)

    async def listen(self, host: str, port: int) -> int:
        """The port that was taken."""
        await self._runner.setup()
        context = serving_context(self._node, host, self._client_ca, self._clock())
        await web.TCPSite(self._runner, host, port, ssl_context=context).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/healthz":
            return web.Response(text="ok")
        if not await self._allowed(request):
            return web.Response(status=403, text="Forbidden\n")
        match request.path.split("/"):
            case ["", "containerLogs", namespace, pod, container] if request.method == "GET":
                return await self._logs(request, namespace, pod, container)
        return web.Response(status=404, text="404 page not found\n")

    async def _logs(self, request: web.BaseRequest, namespace: str, name: str, container: str) -> web.StreamResponse:
        pod = self._find(namespace, name)
        if pod is None:
            return web.Response(status=404, text=f'pod "{name}" does not exist\n')
        try:
            options = options_from(request.query, self._clock())
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        previous = request.query.get("previous") in {"true", "1"}
        path = pod.log_of(container, previous=previous)
        if path is None:
            return web.Response(status=400, text=_why_none(pod, name, container, previous))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        try:
            async for chunk in logs.read(path, options, ended=lambda: previous or pod.ended(container)):
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass  # the reader had enough
        return response

    async def _allowed(self, request: web.BaseRequest) -> bool:
        transport = request.transport
        tls: Any = transport.get_extra_info("ssl_object") if transport is not None else None
        certificate = tls.getpeercert() if tls is not None else None
        if not certificate:
            return False
        subject = [pair for part in certificate.get("subject", ()) for pair in part]
        user = next((value for key, value in subject if key == "commonName"), "")
        groups = [value for key, value in subject if key == "organizationName"]
        caller = (user, *sorted(groups))
        now = self._clock()
        if (until := self._permitted.get(caller)) is not None and until > now:
            return True
        attributes = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": self._node}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": [*groups, "system:authenticated"],
                "resourceAttributes": attributes,
            },
        }
        try:
            answer = await self._client.create(ACCESS_REVIEWS, review)
        except (StatusError, OSError):
            return False
        if not answer["status"].get("allowed"):
            return False
        self._permitted[caller] = now + timedelta(seconds=_PERMITTED_FOR)
        return True


def _why_none(pod: Pod, name: str, container: str, previous: bool) -> str:
    if previous:
        return f'previous terminated container "{container}" in pod "{name}" not found\n'
    waits = pod.waits(container)
    if waits:
        return f'container "{container}" in pod "{name}" is waiting to start: {waits}\n'
    return f'container "{container}" in pod "{name}" is not available\n'


def options_from(query: Any, now: datetime) -> logs.LogOptions:
    def number(name: str) -> int | None:
        text = query.get(name)
        if text is None:
            return None
        if not text.isdigit():
            raise ValueError(f"{name}: must be a number, not {text!r}")
        return int(text)

    since = None
    if (seconds := number("sinceSeconds")) is not None:
        since = (now - timedelta(seconds=seconds)).astimezone(UTC)
    elif query.get("sinceTime"):
        try:
            since = parse_time(query["sinceTime"]).astimezone(UTC)
        except ValueError as error:
            raise ValueError(f"sinceTime: {error}") from error
    return logs.LogOptions(
        follow=query.get("follow") in {"true", "1"},
        timestamps=query.get("timestamps") in {"true", "1"},
        tail_lines=number("tailLines"),
        since=since,
        limit_bytes=number("limitBytes"),
    )


def serving_context(node: str, host: str, client_ca: bytes, now: datetime) -> ssl.SSLContext:
    """TLS with a certificate of our own making, as kubelets serve: API servers do not check it unless told a CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=client_ca.decode())
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(node)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory(prefix="herder-") as folder:
        # The ssl module takes a certificate only from a file: one nobody else can read, for this moment.
        path = Path(folder) / "serving.pem"
        path.touch(mode=0o600)
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context.load_cert_chain(path)
    return context
