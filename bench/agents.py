"""Cost of 500 idle connected clusters to the manager.

The agents run in one separate process. Each has its own TLS tunnel and its own API server. The manager watches its own
objects and the Nodes of each cluster; there are no Nodes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from herder.api.capi.kinds import SECRET
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.management.names import TUNNEL_PARAMETERS, TUNNEL_TOKEN
from herder.engine.apiserver.build import assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client import kubeconfig
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.front.http import HttpFront
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.wire import User
from herder.tunnel.client import Target, TunnelClient
from tests.support.embedded import Embedded

CLUSTERS = 500
WORKSPACE = "fleet-default"
QUIET_SECONDS = 20.0
IDLE_SECONDS = 60.0
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
FLAGS = ("--gateway", "--no-machines", "--no-runner", "--capi-core=external", "--log-level=warning")


def run(directory: Path) -> str:
    with Embedded(directory / "manager", flags=FLAGS) as server:
        return asyncio.run(_measure(server, directory))


async def _measure(server: Embedded, directory: Path) -> str:
    assert server.process is not None
    connection = kubeconfig.load(server.kubeconfig)
    client = Client(HttpTransport(connection))
    try:
        tokens = await _import_all(client)
        before = _memory(server.process.pid)
        settings_file = directory / "agents.json"
        settings = {"url": connection.server, "ca": (connection.ca or b"").decode(), "tokens": tokens}
        settings_file.write_text(json.dumps(settings))
        command = (sys.executable, "-m", "bench.agents", str(settings_file))
        agents = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert agents.stdout is not None
            await agents.stdout.readline()  # the API servers of the agents are ready
            began = time.monotonic()
            await _until_connected(client)
            connected = time.monotonic() - began
            await _until_quiet(server.process.pid)
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
        f"All are connected {connected:.0f} s after their agents start simultaneously. Idle, the manager (API server,\n"
        f"controllers and gateway in one process) uses {idle * 100:.1f} % of a core (goal: 5), and {each:.0f} KB of\n"
        "additional memory per cluster, including the watch of its Nodes.\n"
    )


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
        cluster: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": f"c{number}"}}
        await client.create(kind.resource, {**cluster, "spec": {}}, namespace=WORKSPACE)
    tokens: list[str] = []
    while len(tokens) < CLUSTERS:
        await asyncio.sleep(1)
        secrets = (await client.list_all(SECRET.resource, fields="metadata.name=crt-token-default-token")).items
        tunnel_tokens = [secret for secret in secrets if secret["metadata"]["namespace"].startswith("c-m-")]
        tokens = [base64.b64decode(secret["data"]["token"]).decode() for secret in tunnel_tokens]
    return tokens


async def _until_connected(client: Client) -> None:
    while True:
        clusters = (await client.list_all(MANAGEMENT_CLUSTER.resource)).items
        if sum(map(_is_connected, clusters)) >= CLUSTERS:
            return
        await asyncio.sleep(1)


async def _until_quiet(pid: int) -> None:
    """Wait until the work caused by the connections is done: CPU usage no longer decreases."""
    before, now = float("inf"), _cpu(pid)
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        spent, now = _cpu(pid) - now, _cpu(pid)
        if spent > before * 0.9:
            return
        before = spent


def _is_connected(cluster: Object) -> bool:
    conditions = (cluster.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Connected" and each["status"] == "True" for each in conditions)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    """Return the proportional set size in KB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("Pss:")))


# --- agents ---------------------------------------------------------------------------------------------------------


async def run_agents(settings_file: Path) -> None:
    settings = json.loads(settings_file.read_text())
    context = ssl.create_default_context(cadata=settings["ca"])
    url = "wss" + settings["url"].removeprefix("https") + "/v3/connect"
    pki = Pki.load_or_create(None, now=_now())  # shared by all clusters: isolation does not matter here

    def agent(token: str, cluster: dict[str, str]) -> TunnelClient:
        parameters = base64.b64encode(json.dumps({"cluster": cluster}).encode()).decode()
        headers = {TUNNEL_TOKEN: token, TUNNEL_PARAMETERS: parameters}
        return TunnelClient(lambda: Target(url, headers, context), lambda _proto, _address: True)

    agents = [agent(token, await _cluster(pki)) for token in settings["tokens"]]
    print("ready", flush=True)
    logging.disable(logging.WARNING)  # agents above the connection rate limit log that they retry
    await asyncio.gather(*(agent.run() for agent in agents))


async def _cluster(pki: Pki) -> dict[str, str]:
    """Start an in-memory API server; return the connection parameters of an agent with cluster-admin rights."""
    server = await assemble(None, clock=_now, entropy=os.urandom, inline=True, pki=pki)
    host, port = await HttpFront(server, clock=_now, body_bytes=BODY_BYTES).listen("127.0.0.1", 0, pki.server_context())
    client = Client(InProcess(server, User("bench", groups=("system:masters",))))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent"}}
    await client.create(ACCOUNTS, account, namespace="default")
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "agent"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": "default"}],
    }
    await client.create(GroupVersionResource(group, "v1", "clusterrolebindings"), binding)
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cattle-system"}}
    await client.create(NAMESPACES, system)  # the agent's namespace
    token_request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 7200},
    }
    response = await client.create(ACCOUNTS, token_request, namespace="default", name="agent", subresource="token")
    authority = base64.b64encode(pki.authority.certificate_pem).decode()
    return {"address": f"{host}:{port}", "token": response["status"]["token"], "caCert": authority}


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    uvloop.run(run_agents(Path(sys.argv[1])))
