"""An embedded API server behind TLS in its own process, which reports what attacks cost it.

Commands are lines on stdin, responses are JSON lines on stdout: `report` returns the longest turn of the event loop,
resident memory and the listener's counters; `reset` starts a new measurement. The event loop is asyncio's, whose turns
can be measured; everything else is as in production.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from herder.app.host.process import tune_interpreter
from herder.engine.apiserver.auth.authenticate import StaticTokens
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.apiserver.verbs.watch import EventStream
from herder.engine.client.client import Client
from herder.engine.front.connection import Connection
from herder.engine.front.hijack import Hijack
from herder.engine.front.http import HttpFront
from herder.engine.front.limits import Limits
from herder.engine.meta.kinds import GroupVersionResource
from herder.engine.store import Watch
from herder.engine.wire import Request, User
from tests.support.attacks.turns import Turns, measured_turns

USERS = ("alice", "bob")
NAMESPACES = ("alice", "bob")
_MASTERS = User("admin", groups=("system:masters", "system:authenticated"))


def token_of(user: str) -> str:
    return f"{user}-token-of-the-attack-server"


def _now() -> datetime:
    return datetime.now(UTC)


async def _stall_upgrade(hijack: Hijack, request: Request) -> bool:
    """A cluster that accepts the connection and never responds to the upgrade."""
    if request.path.startswith("/silent"):
        await asyncio.sleep(3)
    return False


async def _serve(turns: Turns) -> None:
    pki = Pki.load_or_create(None, now=_now())
    server = await assemble(None, clock=_now, entropy=os.urandom, pki=pki)
    users = {token_of(name): User(name, groups=("system:authenticated",)) for name in USERS}
    server.authenticator.token_authenticators.append(StaticTokens({**users, token_of("admin"): _MASTERS}))
    await _grant(Client(InProcess(server, _MASTERS)))
    # As high as tests reach quickly.
    limits = Limits(
        long_running_per_user=200,
        anonymous_connections_per_source=100,
        retained_bytes=48 << 20,
        retained_bytes_per_user=24 << 20,
    )
    front = HttpFront(server, clock=_now, body_bytes=BODY_BYTES, upgrade=_stall_upgrade, limit=limits)
    _, port = await front.listen("127.0.0.1", 0, pki.server_context())
    tune_interpreter()
    _print_line({"port": port, "ca": pki.authority.certificate_pem.decode()})
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while command := (await reader.readline()).strip():
        if command == b"reset":
            gc.collect()
            await asyncio.sleep(0)  # the collection is not part of the measurement
            turns.longest, turns.what = 0.0, ""
        _print_line(_report(turns, front))
    os._exit(0)


async def _grant(client: Client) -> None:
    """Grant each user all rights on objects of the namespace with its name, and none elsewhere."""
    namespaces = GroupVersionResource("", "v1", "namespaces")
    bindings = GroupVersionResource("rbac.authorization.k8s.io", "v1", "rolebindings")
    for name in NAMESPACES:
        await client.create(namespaces, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        binding: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"}
        binding["metadata"] = {"name": "admin", "namespace": name}
        binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
        binding["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]
        await client.create(bindings, binding, namespace=name)


def _report(turns: Turns, front: HttpFront) -> dict[str, Any]:
    return {
        "turn_ms": turns.longest * 1000,
        "turn": turns.what,
        "rss_mib": resident_mib(os.getpid()),
        "usage": front.usage(),
        "live": _live(),
    }


def _live() -> dict[str, int]:
    """Objects that exist for each connection, request or watch. No garbage collection runs before they are counted."""
    counted = Counter(type(found) for found in gc.get_objects())
    return {each.__name__: counted[each] for each in (Connection, Request, EventStream, Watch)} | {
        "tasks": len(asyncio.all_tasks())
    }


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _print_line(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with measured_turns() as measured:
        asyncio.run(_serve(measured))
