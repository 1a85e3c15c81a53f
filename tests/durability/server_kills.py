"""The server is killed under HTTP traffic: acknowledged writes exist afterwards, and a resumed watch misses nothing.

Clients write, a watcher resumes from the last revision that it saw, and the server process is killed with SIGKILL at
random moments and restarted on the same data.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.errors import Conflict, Expired, NotFound, StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from tests.support.embedded import Embedded
from tests.support.kube import free_port

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
WRITERS = 4


@dataclass
class History:
    """What the clients know with certainty."""

    acknowledged: dict[str, tuple[int, str | None]] = field(
        default_factory=dict
    )  # name -> revision, value or None if deleted
    doubtful: dict[str, set[str | None]] = field(default_factory=dict)  # sent without a response
    revisions: dict[int, str] = field(default_factory=dict)  # every acknowledged revision and its object
    events: list[tuple[int, str, str, str | None]] = field(default_factory=list)  # revision, type, name, value
    problems: list[str] = field(default_factory=list)


async def run(kills: int, seed: int, directory: Path) -> str:
    random = Random(seed)
    server = Embedded(directory, listen=f"127.0.0.1:{free_port()}")
    history = History()
    for _ in range(kills):
        await asyncio.to_thread(server.start)
        await _run_until_killed(server, history, random)
    await asyncio.to_thread(server.start)
    try:
        await _check(server, history)
    finally:
        await asyncio.to_thread(server.stop)
    assert not history.problems, history.problems[:5]
    return f"{kills} kills of the server, {len(history.revisions)} acknowledged writes, {len(history.events)} events"


def _client(server: Embedded) -> Client:
    return Client(HttpTransport(kubeconfig.load(server.kubeconfig)))


async def _run_until_killed(server: Embedded, history: History, random: Random) -> None:
    """Traffic until the kill; then all clients lose their connections."""
    clients = [_client(server) for _ in range(WRITERS + 1)]
    tasks = [asyncio.ensure_future(_write(clients[i], i, history, random)) for i in range(WRITERS)]
    tasks.append(asyncio.ensure_future(_watch(clients[-1], history)))
    await asyncio.sleep(random.uniform(0.05, 0.5))
    server.kill()
    await asyncio.gather(*tasks)
    for client in clients:
        await client.close()


async def _write(client: Client, writer: int, history: History, random: Random) -> None:
    """Create, update and delete objects of one writer, one request at a time, until the server is down."""
    while True:
        name = f"w{writer}-{random.randrange(12)}"
        value: str | None = str(random.getrandbits(48))
        known = history.acknowledged.get(name, (0, None))[1]
        if known is not None and random.random() < 0.2:
            value = None
        doubt = history.doubtful.setdefault(name, set())
        doubt.add(value)
        try:
            revision = await _send(client, name, value)
        except NotFound:  # an earlier delete succeeded although its response was lost
            history.acknowledged[name] = (history.acknowledged.get(name, (0, None))[0], None)
            doubt.clear()
            continue
        except Conflict:
            doubt.discard(value)
            continue
        except StatusError:
            return  # the server is down: the outcome of this request is unknown
        doubt.clear()
        history.acknowledged[name] = (revision, value)
        if revision:
            history.revisions[revision] = name


async def _send(client: Client, name: str, value: str | None) -> int:
    if value is None:
        await client.delete(CONFIG_MAPS, name, namespace="default")
        return 0  # the response to a delete does not contain its revision
    obj: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    answer = await client.apply(CONFIG_MAPS, obj | {"data": {"value": value}})
    return int(answer["metadata"]["resourceVersion"])


async def _watch(client: Client, history: History) -> None:
    """Resume right after the last event that was received before the kill."""
    since = str(history.events[-1][0]) if history.events else ""
    try:
        if not since:
            since = (await client.list(CONFIG_MAPS, namespace="default")).resource_version
        async for event in client.watch(CONFIG_MAPS, namespace="default", resource_version=since):
            _record(history, event.type, event.object)
    except Expired as error:
        history.problems.append(f"history was lost: {error}")
    except StatusError:
        return


def _record(history: History, kind: str, obj: Object) -> None:
    name = obj["metadata"]["name"]
    if kind == "BOOKMARK" or not name.startswith("w"):
        return
    value = None if kind == "DELETED" else obj["data"]["value"]
    history.events.append((int(obj["metadata"]["resourceVersion"]), kind, name, value))


async def _check(server: Embedded, history: History) -> None:
    client = _client(server)
    try:
        page = await client.list(CONFIG_MAPS, namespace="default")
        watching = asyncio.ensure_future(_watch(client, history))
        newest = max((int(item["metadata"]["resourceVersion"]) for item in page.items), default=0)
        async with asyncio.timeout(20):
            while not history.events or history.events[-1][0] < newest:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    finally:
        await client.close()
    check_objects(history, {item["metadata"]["name"]: item for item in page.items})
    check_events(history)


def check_objects(history: History, stored: dict[str, Object]) -> None:
    for name, (_, value) in history.acknowledged.items():
        found = stored[name]["data"]["value"] if name in stored else None
        if found != value and found not in history.doubtful.get(name, set()):
            history.problems.append(f"{name}: acknowledged {value}, stored {found}")


def check_events(history: History) -> None:
    revisions = [revision for revision, *_ in history.events]
    if revisions != sorted(set(revisions)):
        history.problems.append("watch events were repeated or out of order")
    first = revisions[0] if revisions else 0
    missed = [revision for revision in history.revisions if revision > first and revision not in set(revisions)]
    if missed:
        history.problems.append(f"{len(missed)} acknowledged writes were never seen by the watch: {sorted(missed)[:5]}")
