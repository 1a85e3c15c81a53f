"""Logs of machines that the gateway reads for the owners of a cluster."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any, cast

from herder.api.machines.archive import MAX_LOG_BYTES
from herder.engine.client.client import Client, Page
from herder.engine.meta.errors import NotFound
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import Query, Response
from herder.gateway.machine_logs import MAX_PODS, NOT_REDACTABLE, machine_log

NAMESPACE = "fleet-default"
KIND = "ProcessMachine"


class Api:
    """An API server with more pods of one label than a machine ever has, each with a large log."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.sent = 0
        self.credential = "cloud-credential"
        self.line = "x" * 63 + "\n"

    async def get(self, resource: GroupVersionResource, name: str, *, namespace: str = "") -> Object:
        self.read.append(resource.path(namespace, name))
        if resource.resource == "configmaps" or (resource.resource == "secrets" and not self.credential):
            raise NotFound(name)
        if resource.resource == "secrets":
            return {"metadata": {"name": name}, "data": {"TOKEN": base64.b64encode(self.credential.encode()).decode()}}
        raise AssertionError(f"not expected: {resource}")

    async def list_all(self, *_: Any, **__: Any) -> Page:
        labels = {"rke.cattle.io/infra-machine-kind": KIND}
        meta = {"namespace": NAMESPACE, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
        pods = [{"metadata": {**meta, "name": f"p{number}"}} for number in range(50)]
        return Page(pods, "1", "")

    async def raw(self, _method: str, path: str, query: Query) -> Response:
        self.read.append(path)
        chunks = int(query.get("limitBytes") or 16 << 20) // (64 << 10)

        async def large() -> AsyncIterator[bytes]:
            for _ in range(chunks):
                self.sent += 64 << 10
                yield (self.line * 1024).encode()

        return Response(200, {}, stream=large())


async def test_a_log_is_read_only_up_to_its_limit() -> None:
    """Editors of the namespace can create pods with the label of another machine."""
    api = Api()
    log = await machine_log(cast(Client, api), NAMESPACE, KIND, "m")
    assert MAX_LOG_BYTES - 64 <= len(log) <= MAX_LOG_BYTES
    assert api.sent <= MAX_PODS * MAX_LOG_BYTES
    assert len([path for path in api.read if path.endswith("/log")]) == MAX_PODS


async def test_a_log_does_not_contain_the_credential_of_the_job() -> None:
    """Owners of a cluster may use its cloud credential, but not read it."""
    api = Api()
    api.line = f"error: token {api.credential} is not valid".ljust(63) + "\n"
    log = await machine_log(cast(Client, api), NAMESPACE, KIND, "m")
    assert "is not valid" in log
    assert api.credential not in log
    api.credential = ""  # the Secret was deleted: what must be redacted is unknown
    assert await machine_log(cast(Client, api), NAMESPACE, KIND, "m") == NOT_REDACTABLE


async def test_a_machine_of_another_kind_has_another_log() -> None:
    """A user can give a machine of the own cluster the name of another user's machine, if it is of another kind."""
    api = Api()
    assert await machine_log(cast(Client, api), NAMESPACE, "OtherMachine", "m") == ""
    assert not [path for path in api.read if path.endswith("/log")]
