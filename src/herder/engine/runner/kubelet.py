"""Kubelet API subset that API servers call: `GET /containerLogs/{namespace}/{pod}/{container}` over TLS.

Clients authenticate with a certificate of the cluster's client CA and are authorized with a SubjectAccessReview for
nodes/proxy, as in a kubelet. Without that CA nothing is served.
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
from herder.engine.front.http import HttpFront
from herder.engine.meta.errors import StatusError
from herder.engine.runner import logs
from herder.engine.runner.kinds import ACCESS_REVIEWS, Clock, parse_time
from herder.engine.runner.pod.pod import Pod
from herder.engine.wire import Query, Request, Response

_AUTHORIZED_SECONDS = 10.0  # how long a positive review is cached
_GRACE_SECONDS = 0.5  # followed logs never end
_TEXT = {"content-type": "text/plain"}
_TRUE = frozenset({"true", "1"})


class Kubelet:
    """HTTPS endpoint that serves container logs."""

    def __init__(
        self, client: Client, node: str, *, client_ca: bytes, clock: Clock, find: Callable[[str, str], Pod | None]
    ) -> None:
        self._client = client
        self._node = node
        self._client_ca = client_ca
        self._clock = clock
        self._find = find
        self._authorized_until: dict[tuple[str, ...], datetime] = {}
        self._front = HttpFront(self, clock=clock, body_bytes=0)

    async def listen(self, host: str, port: int) -> int:
        """Listen and return the bound port."""
        context = serving_context(self._node, self._client_ca, self._clock())
        _, bound_port = await self._front.listen(host, port, context)
        return bound_port

    async def stop(self) -> None:
        await self._front.stop(_GRACE_SECONDS)

    async def handle(self, request: Request) -> Response:
        if request.path == "/healthz":
            return _text_response(200, "ok")
        if not await self._is_authorized(request):
            return _text_response(403, "Forbidden\n")
        match request.path.split("/"):
            case ["", "containerLogs", namespace, pod, container] if request.method == "GET":
                return self._logs(request.query, namespace, pod, container)
        return _text_response(404, "404 page not found\n")

    def _logs(self, query: Query, namespace: str, name: str, container: str) -> Response:
        pod = self._find(namespace, name)
        if pod is None:
            return _text_response(404, f'pod "{name}" does not exist\n')
        try:
            options = options_from(query, self._clock())
        except ValueError as error:
            return _text_response(400, f"{error}\n")
        previous = query.get("previous") in _TRUE
        path = pod.log_of(container, previous=previous)
        if path is None:
            return _text_response(400, _no_log_message(pod, name, container, previous))
        stream = logs.read(path, options, ended=lambda: previous or pod.ended(container))
        return Response(headers=dict(_TEXT), stream=stream)

    async def _is_authorized(self, request: Request) -> bool:
        user, groups = _caller(request.client_certificate)
        if not user:
            return False
        caller = (user, *sorted(groups))
        now = self._clock()
        if (until := self._authorized_until.get(caller)) is not None and until > now:
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
        self._authorized_until[caller] = now + timedelta(seconds=_AUTHORIZED_SECONDS)
        return True


def _caller(certificate: bytes | None) -> tuple[str, list[str]]:
    """Return user name and groups of a client certificate, as API servers read them; an empty name if it has none."""
    if certificate is None:
        return "", []
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except ValueError:
        return "", []
    names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    return names[-1] if names else "", groups


def _text_response(status: int, text: str) -> Response:
    return Response(status, dict(_TEXT), text.encode())


def _no_log_message(pod: Pod, name: str, container: str, previous: bool) -> str:
    if previous:
        return f'previous terminated container "{container}" in pod "{name}" not found\n'
    waiting = pod.waiting(container)
    if waiting:
        return f'container "{container}" in pod "{name}" is waiting to start: {waiting}\n'
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
            since = None  # before the earliest date: everything
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
    """Return a TLS context with a self-signed certificate, as kubelets use: API servers do not verify it unless
    given a CA."""
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
        # The ssl module loads certificates only from files: use a private, temporary one.
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
