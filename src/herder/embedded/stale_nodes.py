"""Delete Nodes that a restored snapshot brought back: `herder-stale-nodes UID…`, with the UIDs of all Machines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection

from herder.api.rke.names import MACHINE_UID
from herder.embedded.configuration import CONFIG_DIR
from herder.embedded.node import NODES
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import KubeconfigError, load
from herder.engine.meta.errors import NotFound, StatusError

TRIES, RETRY_SECONDS = 24, 5.0  # two minutes, as on the other distributions


async def delete_stale_nodes(client: Client, machines: Collection[str]) -> list[str]:
    """Delete Nodes of other Machines, and return their names. Nodes without a Machine stay."""
    deleted = []
    for node in (await client.list(NODES)).items:
        name, uid = node["metadata"]["name"], (node["metadata"].get("labels") or {}).get(MACHINE_UID, "")
        if uid and uid not in machines:
            try:
                await client.delete(NODES, name)
            except NotFound:
                continue
            deleted.append(name)
    return deleted


async def delete_with_retries(client: Client, machines: Collection[str], seconds: float = RETRY_SECONDS) -> list[str]:
    """Delete them as soon as the API server answers: it may restart meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return await delete_stale_nodes(client, machines)
        except (StatusError, OSError):
            await asyncio.sleep(seconds)
    return await delete_stale_nodes(client, machines)


async def _run(machines: Collection[str]) -> None:
    client = Client(HttpTransport(load(CONFIG_DIR / "herder.yaml")))
    try:
        for name in await delete_with_retries(client, machines):
            print(f"node/{name} deleted")
    finally:
        await client.close()


def main() -> int:
    try:
        asyncio.run(_run(sys.argv[1:]))
    except (KubeconfigError, StatusError, OSError) as problem:
        print(f"cannot delete stale nodes: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
