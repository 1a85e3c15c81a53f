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

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from herder.engine.client.client import Client
from herder.engine.client.wire import Query, Request, Response
from herder.engine.front.http import HttpFront
from herder.engine.meta.errors import StatusError
from herder.engine.runner import logs
from herder.engine.runner.kinds import ACCESS_REVIEWS, Clock, parse_time
from herder.engine.runner.pods import Pod

_PERMITTED_FOR = 10.0  # seconds that an answer about a caller is remembered
_GRACE_SECONDS = 0.5  # who follows a log has no end to wait for
_TEXT = {"content-type": "text/plain"}
_TRUE = frozenset({"true", "1"})


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
        self._front = HttpFront(self, clock=clock, body_bytes=0)

    async def listen(self, host: str, port: int) -> int:
        """The port that was taken."""
        context = serving_context(self._node, self._client_ca, self._clock())
        _, taken = await self._front.listen(host, port, context)
        return taken

    async def stop(self) -> None:
        await self._front.stop(_GRACE_SECONDS)

    async def handle(self, request: Request) -> Response:
        if request.path == "/healthz":
            return _said(200, "ok")
        if not await self._allowed(request):
            return _said(403, "Forbidden\n")
        match request.path.split("/"):
            case ["", "containerLogs", namespace, pod, container] if request.method == "GET":
                return self._logs(request.query, namespace, pod, container)
        return _said(404, "404 page not found\n")

    def _logs(self, query: Query, namespace: str, name: str, container: str) -> Response:
        pod = self._find(namespace, name)
        if pod is None:
            return _said(404, f'pod "{name}" does not exist\n')
        try:
            options = options_from(query, self._clock())
        except ValueError as error:
            return _said(400, f"{error}\n")
        previous = query.get("previous") in _TRUE
        path = pod.log_of(container, previous=previous)
        if path is None:
            return _said(400, _why_none(pod, name, container, previous))
        stream = logs.read(path, options, ended=lambda: previous or pod.ended(container))
        return Response(headers=dict(_TEXT), stream=stream)

    async def _allowed(self, request: Request) -> bool:
        user, groups = _caller(request.client_certificate)
        if not user:
            return False
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


def _caller(certificate: bytes | None) -> tuple[str, list[str]]:
    """Name and groups, as API servers read them from a certificate; no name for one that says none."""
    if certificate is None:
        return "", []
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except ValueError:
        return "", []
    names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    return names[-1] if names else "", groups


def _said(status: int, text: str) -> Response:
    return Response(status, dict(_TEXT), text.encode())


def _why_none(pod: Pod, name: str, container: str, previous: bool) -> str:
    if previous:
        return f'previous terminated container "{container}" in pod "{name}" not found\n'
    waits = pod.waits(container)
    if waits:
        return f'container "{container}" in pod "{name}" is waiting to start: {waits}\n'
    return f'container "{container}" in pod "{name}" is not available\n'


def options_from(query: Query, now: datetime) -> logs.LogOptions:
    def number(name: str) -> int | None:
        if name not in query:
            return None
        text = query.get(name)
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name}: must be a number, not {text!r}")
        return int(text)

    since = None
    if (seconds := number("sinceSeconds")) is not None:
        try:
            since = (now - timedelta(seconds=seconds)).astimezone(UTC)
        except OverflowError:
            since = None  # before all calendars, hence everything
    elif text := query.get("sinceTime"):
        try:
            since = parse_time(text).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"sinceTime: {error}") from error
    return logs.LogOptions(
        follow=query.get("follow") in _TRUE,
        timestamps=query.get("timestamps") in _TRUE,
        tail_lines=number("tailLines"),
        since=since,
        limit_bytes=number("limitBytes"),
    )


def serving_context(node: str, client_ca: bytes, now: datetime) -> ssl.SSLContext:
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
