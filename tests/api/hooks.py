"""Webhooks that both engines call: an HTTPS server on loopback, for admission and for conversion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from tests.api.objects import Obj
from tests.engine.apiserver.admission.hook_server import HookServer, allow, deny, patch
from tests.support.api import PATIENCE, Api
from tests.support.engines import unique

__all__ = ["HookServer", "allow", "converted", "deny", "hooked", "patch", "told"]

ADMISSION = "admissionregistration.k8s.io/v1"


def converted(convert: Callable[[Obj, str], Obj]) -> Callable[[Obj], web.Response]:
    """Answers a ConversionReview, object by object."""

    def respond(request: Obj) -> web.Response:
        objects = [convert(obj, request["desiredAPIVersion"]) for obj in request["objects"]]
        response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}
        review = {"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response}
        return web.Response(body=msgspec.json.encode(review), content_type="application/json")

    return respond


@asynccontextmanager
async def hooked(api: Api, server: HookServer, kind: str, respond: Any, **webhook: Any) -> AsyncIterator[str]:
    """A webhook configuration for ConfigMaps of the test's namespace, in force inside the block; its path.

    It is known to be in force when a probe, an object that no test uses, has been seen by the server.
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
        await in_force(api, server, path)
        yield path
    finally:
        await api.delete(api.cluster(f"{ADMISSION}/{kind}", name))


def told(server: HookServer) -> list[Obj]:
    """What the webhooks were told of the test's own objects; the server puts one of its own into every namespace."""
    return [request for request in server.requests if request["name"] not in ("probe", "kube-root-ca.crt")]


async def in_force(api: Api, server: HookServer, path: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not any(request["path"] == path for request in server.requests):
            await api.post(api.at("configmaps") + "?dryRun=All", {"metadata": {"name": "probe"}})
    server.requests.clear()
