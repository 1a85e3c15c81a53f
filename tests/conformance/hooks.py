"""HTTPS server on loopback for admission and conversion webhooks that both engines call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from tests.conformance.objects import Obj
from tests.support.api import TIMEOUT, Api
from tests.support.engines import unique
from tests.unit.engine.apiserver.admission.hook_server import HookServer, allow, deny, patch

__all__ = ["HookServer", "allow", "converted", "deny", "hooked", "patch", "received_requests"]

ADMISSION = "admissionregistration.k8s.io/v1"


def converted(convert: Callable[[Obj, str], Obj]) -> Callable[[Obj], web.Response]:
    """Respond to a ConversionReview, object by object."""

    def respond(request: Obj) -> web.Response:
        objects = [convert(obj, request["desiredAPIVersion"]) for obj in request["objects"]]
        response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}
        review = {"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response}
        return web.Response(body=msgspec.json.encode(review), content_type="application/json")

    return respond


@asynccontextmanager
async def hooked(api: Api, server: HookServer, kind: str, respond: Any, **webhook: Any) -> AsyncIterator[str]:
    """Register a webhook for ConfigMaps of the test's namespace; yields its path.

    It waits until the server has called the webhook for a probe object that no test uses.
    """
    name = unique("hook")
    path = f"/{name}"
    server.answers[path] = respond
    rules = [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]
    selector = {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}
    hook = {
        "name": f"{name}.example.com",
        "clientConfig": server.client_config(path),
        "rules": rules,
        "namespaceSelector": selector,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    } | webhook
    await api.create_cluster(f"{ADMISSION}/{kind}", {"metadata": {"name": name}, "webhooks": [hook]})
    try:
        await wait_until_called(api, server, path)
        yield path
    finally:
        await api.delete(api.cluster(f"{ADMISSION}/{kind}", name))


def received_requests(server: HookServer) -> list[Obj]:
    """Return the AdmissionReview requests for the test's own objects, without the ConfigMap that every namespace
    has."""
    return [request for request in server.requests if request["name"] not in ("probe", "kube-root-ca.crt")]


async def wait_until_called(api: Api, server: HookServer, path: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not any(request["path"] == path for request in server.requests):
            await api.post(api.at("configmaps") + "?dryRun=All", {"metadata": {"name": "probe"}})
    server.requests.clear()
