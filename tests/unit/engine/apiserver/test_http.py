"""The server on a real socket: malformed HTTP, and kubectl."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import yaml

from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.front.http import HttpFront
from tests.support.peers import peer


@dataclass
class Served:
    server: ApiServer
    front: HttpFront
    pki: Pki
    url: str
    port: int
    kubeconfig: Path
    session: aiohttp.ClientSession

    async def kubectl(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            peer("kubectl"), f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.kubeconfig.parent / 'cache'}",
            *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(30):
            output, _ = await process.communicate(stdin.encode())
        return process.returncode or 0, output.decode()


def client_context(pki: Pki, directory: Path, *, certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pki.authority.certificate_pem.decode())
    if certificate:
        bundle = directory / "admin.pem"
        bundle.write_bytes(pki.admin.certificate_pem + pki.admin.key_pem)
        context.load_cert_chain(bundle)
    return context


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    pki = Pki.load_or_create(None, now=datetime.now(UTC))
    server = await assemble(directory / "data", clock=lambda: datetime.now(UTC), entropy=os.urandom, pki=pki)
    front = HttpFront(server, clock=lambda: datetime.now(UTC), body_bytes=BODY_BYTES)
    _, port = await front.listen("127.0.0.1", 0, pki.server_context())
    url = f"https://127.0.0.1:{port}"
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(pki.admin_kubeconfig(url)))
    connector = aiohttp.TCPConnector(ssl=client_context(pki, directory))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Served(server, front, pki, url, port, kubeconfig, session)
    await asyncio.gather(front.stop(), server.stop())


async def test_a_client_certificate_authenticates_the_user(served: Served) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with served.session.post(
        f"{served.url}/apis/authentication.k8s.io/v1/selfsubjectreviews", json=review
    ) as response:
        assert response.status == 201
        assert "system:masters" in (await response.json())["status"]["userInfo"]["groups"]


async def test_clients_without_a_certificate_are_anonymous(served: Served, tmp_path: Path) -> None:
    connector = aiohttp.TCPConnector(ssl=client_context(served.pki, tmp_path, certificate=False))
    async with aiohttp.ClientSession(connector=connector) as anonymous:
        async with anonymous.get(f"{served.url}/api/v1/secrets") as rejected:
            assert rejected.status == 403
            assert 'User "system:anonymous" cannot list' in (await rejected.json())["message"]
        async with anonymous.get(f"{served.url}/readyz") as ready:
            assert ready.status == 200
        async with anonymous.get(f"{served.url}/readyz", headers={"Authorization": "Bearer forged"}) as rejected:
            assert rejected.status == 401


async def raw(served: Served, content: bytes, tmp_path: Path) -> bytes:
    context = client_context(served.pki, tmp_path)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
    writer.write(content)
    async with asyncio.timeout(10):
        answer = await reader.read(65536)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_line", "statuses"),
    [
        (b"GET /api/v1/namespaces/default/configmaps/%ZZ HTTP/1.1", (b"400", b"404")),
        (b"GET /api/v1/namespaces/default/configmaps/%00 HTTP/1.1", (b"400",)),
        (b"GET /api/v1/namespaces/default/configmaps/%FF%FE HTTP/1.1", (b"400", b"404")),
        (b"GET http:// HTTP/1.1", (b"400", b"404")),
        (b"UNHEARD /api HTTP/1.1", (b"400", b"405")),
        (b"GET /api HTTP/9.9", (b"400", b"505")),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1", (b"400", b"414")),
        (b"nonsense", (b"400",)),
    ],
)
async def test_malformed_requests_are_rejected(
    served: Served, tmp_path: Path, request_line: bytes, statuses: tuple[bytes, ...]
) -> None:
    answer = await raw(served, request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n", tmp_path)
    assert answer.split(b" ", 2)[1] in statuses, answer[:300]


async def test_a_body_over_the_limit_is_rejected_before_it_is_read(served: Served, tmp_path: Path) -> None:
    head = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = await raw(served, head + b"Content-Length: 99999999\r\n\r\n{", tmp_path)
    assert b" 413 " in answer.splitlines()[0]
    assert b"Request entity too large: limit is 3145728" in answer


async def test_a_watch_streams_and_ends_with_its_client(served: Served) -> None:
    url = f"{served.url}/api/v1/namespaces/default/configmaps"
    async with served.session.get(f"{url}?watch=true&fieldSelector=metadata.name%3Dw") as watch:
        assert watch.headers["transfer-encoding"] == "chunked"
        async with served.session.post(url, json={"metadata": {"name": "w"}}) as created:
            assert created.status == 201
        async with asyncio.timeout(10):
            line = await watch.content.readline()
        assert line.startswith(b'{"type":"ADDED","object":{"kind":"ConfigMap"')


async def test_warnings_are_quoted_in_headers(served: Served) -> None:
    url = f"{served.url}/api/v1/namespaces/default/configmaps?dryRun=All"
    async with served.session.post(url, json={"metadata": {"name": "x"}, "foo": 1}) as created:
        assert created.headers.getall("warning") == ['299 - "unknown field \\"foo\\""']


# --- kubectl ------------------------------------------------------------------------------------------------------


async def test_kubectl_creates_gets_edits_and_deletes(served: Served) -> None:
    assert await served.kubectl("create", "configmap", "k", "--from-literal=a=b") == (0, "configmap/k created\n")
    code, output = await served.kubectl("get", "configmap", "k")
    assert code == 0
    assert output.split()[:3] == ["NAME", "DATA", "AGE"]
    assert (await served.kubectl("label", "configmap", "k", "x=y"))[1] == "configmap/k labeled\n"
    assert (await served.kubectl("get", "cm", "k", "-o", "jsonpath={.metadata.labels.x}"))[1] == "y"
    assert (await served.kubectl("patch", "cm", "k", "-p", '{"data":{"a":"c"}}'))[1] == "configmap/k patched\n"
    assert (await served.kubectl("delete", "configmap", "k"))[0] == 0
    code, output = await served.kubectl("get", "configmap", "k")
    assert (code, output) == (1, 'Error from server (NotFound): configmaps "k" not found\n')


async def test_kubectl_applies_client_side_and_server_side(served: Served) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ap}\ndata: {a: b}\n"
    assert (await served.kubectl("apply", "-f", "-", stdin=manifest))[1] == "configmap/ap created\n"
    assert (await served.kubectl("apply", "-f", "-", stdin=manifest))[1] == "configmap/ap unchanged\n"
    code, _ = await served.kubectl("diff", "-f", "-", stdin=manifest)
    assert code == 0
    code, output = await served.kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
    assert (code, output) == (0, "configmap/ap serverside-applied\n")
    wrong = manifest + "unheard: 1\n"
    code, output = await served.kubectl("apply", "-f", "-", stdin=wrong)
    assert code == 1
    assert 'unknown field "unheard"' in output
