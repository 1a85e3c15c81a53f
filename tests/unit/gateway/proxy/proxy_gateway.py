"""The proxy behind a real HTTPS front, with clusters and users of a test."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import yaml

from herder.engine.apiserver.request.info import RequestInfo
from herder.engine.front.hijack import Hijack
from herder.engine.front.http import HttpFront
from herder.engine.meta.errors import NotFound, ServiceUnavailable
from herder.engine.wire import Request, Response, User
from herder.gateway.proxy import ClusterProxy, InProcess, Remote, Target, dial_tcp
from herder.gateway.proxy.impersonation.impersonators import Tokens
from herder.gateway.proxy.upstream.channel import Dial
from tests.support.kube import Authority
from tests.support.peers import peer

ALICE = User("u-alice", "u-alice", ("devs", "system:authenticated"), {"username": ("alice",)})
MALLORY = User("u-mallory", "u-mallory", ("system:authenticated",))
SUPPORT = User("u-support", "u-support", ("system:authenticated",))  # may impersonate alice
ADMIN = User("admin", "", ("system:masters", "system:authenticated"))

USERS = {"token-alice": ALICE, "token-mallory": MALLORY, "token-support": SUPPORT, "token-admin": ADMIN}
FORBIDDEN_CLUSTER = "c-m-forbidden"


class EmptyApi:
    async def handle(self, request: Request) -> Response:
        return Response(200, {}, b"nothing here")


class Gateway:
    """The part of the manager around the proxy; it authenticates users from a table."""

    receives_body = True

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        dial: Dial = dial_tcp,
        local: InProcess | Remote | None = None,
        authority: Authority | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self.targets = dict(targets)
        self.removed: set[str] = set()  # users who lost access to all clusters
        self.restored: set[str] = set()  # users who cannot use any cluster for now
        self.admitted = asyncio.Event()  # a request has passed the check whether its user can use the cluster
        self.url = ""
        self.authority = authority
        self.local = local or InProcess(EmptyApi())
        self.proxy = ClusterProxy(
            target_of=self._target_of,
            dial=dial,
            may_use=self._may_use,
            may_impersonate=self._may_impersonate,
            may_request=self._may_request,
            check_available=self._check_available,
            local=self.local,
            server_url=lambda: self.url,
            tokens=tokens,
            check_seconds=0.1,
        )
        self.front = HttpFront(self, clock=lambda: datetime.now(UTC), body_bytes=3 << 20, upgrade=self.upgrade)

    async def start(self) -> Gateway:
        context = None
        if self.authority is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.authority.issue("gateway", server=True))
        _, self.port = await self.front.listen("127.0.0.1", 0, context)
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        return self

    async def stop(self) -> None:
        await self.front.stop(0)
        await self.proxy.close()

    async def handle(self, request: Request) -> Response:
        user = _authenticate(request)
        if user is None:
            return Response(401, {}, b"must authenticate")
        return await self.proxy.handle(request, user)

    async def upgrade(self, hijack: Hijack, request: Request) -> bool | Response:
        user = _authenticate(request)
        return user is not None and await self.proxy.upgrade(hijack, request, user)

    async def _target_of(self, cluster: str) -> Target:
        if cluster not in self.targets:
            raise NotFound(f'clusters.management.cattle.io "{cluster}" not found')
        return self.targets[cluster]

    async def _may_use(self, user: User, cluster: str) -> bool:
        return user.name not in {MALLORY.name, *self.removed} and cluster != FORBIDDEN_CLUSTER

    async def _check_available(self, user: User, _cluster: str) -> None:
        if user.name in self.restored:
            raise ServiceUnavailable("it is being restored")
        self.admitted.set()

    async def _may_request(self, user: User, _info: RequestInfo) -> bool:
        return user.name not in self.removed

    async def _may_impersonate(self, user: User, wanted: User) -> bool:
        return user.name == SUPPORT.name and wanted.name == ALICE.name and set(wanted.groups) <= set(ALICE.groups)

    # --- kubectl ------------------------------------------------------------------------------------------------------

    def kubeconfig(self, directory: Path, cluster: str, token: str) -> Path:
        assert self.authority is not None
        cluster_entry = {
            "server": f"{self.url}/k8s/clusters/{cluster}",
            "certificate-authority": str(self.authority.path),
        }
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster_entry}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = directory / f"{cluster}-{token}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    async def kubectl(self, config: Path, *arguments: str, stdin: str = "") -> KubectlResult:
        process = await start_kubectl(config, *arguments)
        async with asyncio.timeout(60):
            output, errors = await process.communicate(stdin.encode())
        return KubectlResult(process.returncode or 0, output.decode(), errors.decode())


class KubectlResult:
    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code = code
        self.output = output
        self.errors = errors


async def start_kubectl(config: Path, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    environment = os.environ | {"KUBECONFIG": str(config), "KUBECACHEDIR": f"{config}.cache"}
    return await asyncio.create_subprocess_exec(
        peer("kubectl"), *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )


def _authenticate(request: Request) -> User | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not token and "cookie" in request.headers:
        token = request.headers["cookie"].removeprefix("R_SESS=")
    return USERS.get(token)
