"""HTTPS server that responds to AdmissionReviews."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from herder.engine.apiserver.pki import Pki
from herder.engine.meta.kinds import Object

Respond = Callable[[Object], Any]


class HookServer:
    """Serves on loopback. `answers[path]` returns the `response` of a review for its `request`."""

    def __init__(self) -> None:
        self.pki = Pki.load_or_create(None, now=datetime.now(UTC), hosts=("hook.ci.svc",))
        self.answers: dict[str, Respond] = {}
        self.requests: list[Object] = []
        self.delay = 0.0
        self.port = 0
        self._runner: web.ServerRunner | None = None

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.pki.server_context())
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def client_config(self, path: str = "/") -> Object:
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": self.ca_bundle}

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self.pki.authority.certificate_pem).decode()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        review = msgspec.json.decode(await request.read())
        self.requests.append(review["request"] | {"path": request.path, "query": request.query_string})
        await asyncio.sleep(self.delay)
        response = self.answers[request.path](review["request"])
        if isinstance(response, web.Response):
            return response
        answer = {"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response}
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def allow(request: Object, **more: Any) -> Object:
    return {"uid": request["uid"], "allowed": True} | more


def deny(request: Object, **status: Any) -> Object:
    return {"uid": request["uid"], "allowed": False} | ({"status": status} if status else {})


def patch(request: Object, *operations: Object) -> Object:
    encoded = base64.b64encode(msgspec.json.encode(list(operations))).decode()
    return allow(request, patch=encoded, patchType="JSONPatch")
