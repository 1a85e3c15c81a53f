"""What connected clusters cost a manager that nobody asks anything: five hundred agents, idle.

The agents are one process beside it, each with a tunnel of its own over TLS. They all lead to one other API server: the
manager watches the Nodes of each cluster, and there are none.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
import time
from pathlib import Path

from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import TUNNEL_PARAMETERS, TUNNEL_TOKEN
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.tunnel.client import Target, TunnelClient
from tests.support.embedded import Embedded

CLUSTERS = 500
WORKSPACE = "fleet-default"
IDLE_SECONDS = 60.0
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
FLAGS = ("--gateway", "--no-machines", "--no-runner", "--capi-core=external", "--log-level=warning")


def run(directory: Path) -> str:
    with Embedded(directory / "cluster") as cluster, Embedded(directory / "manager", flags=FLAGS) as server:
        return asyncio.run(_measure(server, cluster, directory))


async def _measure(server: Embedded, cluster: Embedded, directory: Path) -> str:
    assert server.process is not None
    connection = kubeconfig.load(server.kubeconfig)
    client = Client(HttpTransport(connection))
    try:
        tokens = await _import_all(client)
        before = _memory(server.process.pid)
        told = directory / "agents.json"
        given = {"url": connection.server, "ca": (connection.ca or b"").decode(), "tokens": tokens}
        told.write_text(json.dumps(given | {"cluster": await _parameters(cluster)}))
        began = time.monotonic()
        agents = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.agents", str(told))
        try:
            await _until_connected(client)
            connected = time.monotonic() - began
            await asyncio.sleep(15)  # what their coming set off is over
            spent = _cpu(server.process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            idle = (_cpu(server.process.pid) - spent) / IDLE_SECONDS
            each = (_memory(server.process.pid) - before) / CLUSTERS
        finally:
            agents.terminate()
            await agents.wait()
    finally:
        await client.close()
    return (
        f"## {CLUSTERS} connected clusters\n\n"
        f"All are connected {connected:.0f} s after their agents start at once. Idle, the manager (API server,\n"
        f"controllers and gateway in one process) uses {idle * 100:.1f} % of a core (goal: 5), and {each:.0f} KB more\n"
        "than before for each, the watch of its Nodes included.\n"
    )


async def _parameters(cluster: Embedded) -> dict[str, str]:
    """What an agent in it would tell, with every right there."""
    connection = kubeconfig.load(cluster.kubeconfig)
    client = Client(HttpTransport(connection))
    try:
        group, name = "rbac.authorization.k8s.io", "agent"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        await client.create(ACCOUNTS, account, namespace="default")
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }
        await client.create(GroupVersionResource(group, "v1", "clusterrolebindings"), binding)
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        made = await client.create(ACCOUNTS, wish, namespace="default", name=name, subresource="token")
    finally:
        await client.close()
    authority = base64.b64encode(connection.ca or b"").decode()
    return {
        "address": connection.server.removeprefix("https://"),
        "token": made["status"]["token"],
        "caCert": authority,
    }


async def _import_all(client: Client) -> list[str]:
    kind = PROVISIONING_CLUSTER
    while True:
        try:
            await client.list(kind.resource, limit=1)
            break
        except Exception:
            await asyncio.sleep(0.2)
    await client.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WORKSPACE}})
    for number in range(CLUSTERS):
        wanted: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": f"c{number}"}}
        await client.create(kind.resource, {**wanted, "spec": {}}, namespace=WORKSPACE)
    tokens: list[str] = []
    while len(tokens) < CLUSTERS:
        await asyncio.sleep(1)
        secrets = (await client.list_all(SECRET.resource, fields="metadata.name=crt-token-default-token")).items
        ours = [one for one in secrets if one["metadata"]["namespace"].startswith("c-m-")]
        tokens = [base64.b64decode(one["data"]["token"]).decode() for one in ours]
    return tokens


async def _until_connected(client: Client) -> None:
    while True:
        clusters = (await client.list_all(MANAGEMENT_CLUSTER.resource)).items
        if sum(map(_is_connected, clusters)) >= CLUSTERS:
            return
        await asyncio.sleep(1)


def _is_connected(cluster: Object) -> bool:
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Connected" and each["status"] == "True" for each in conditions)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """KB that are its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("Pss:")))


# --- the agents -----------------------------------------------------------------------------------------------------


async def be_agents(told: Path) -> None:
    given = json.loads(told.read_text())
    context = ssl.create_default_context(cadata=given["ca"])
    url = "wss" + given["url"].removeprefix("https") + "/v3/connect"
    cluster = {
        "address": "192.0.2.1:6443",
        "token": "t" * 800,
        "caCert": base64.b64encode(given["ca"].encode()).decode(),
    }
    parameters = base64.b64encode(json.dumps({"cluster": cluster}).encode()).decode()

    def agent(token: str) -> TunnelClient:
        headers = {TUNNEL_TOKEN: token, TUNNEL_PARAMETERS: parameters}
        return TunnelClient(lambda: Target(url, headers, context), lambda _proto, _address: True)

    await asyncio.gather(*(agent(token).run() for token in given["tokens"]))


if __name__ == "__main__":
    asyncio.run(be_agents(Path(sys.argv[1])))
