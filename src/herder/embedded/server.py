"""A server of the embedded distribution: API server, its own Node, auto-deployed manifests, and the cluster agent."""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from herder.api.rke.node.join_token import machine_of
from herder.embedded.cluster_agent import ClusterAgent, wanted
from herder.embedded.configuration import NODE_PORT, SECURE_PORT, Configuration
from herder.embedded.keys import service_account_key, write_encryption_keys
from herder.embedded.manifests import Manifests
from herder.embedded.node import LEASE_NAMESPACE, Node, serve_health
from herder.embedded.node_admission import install_node_admission
from herder.embedded.node_authorizer import NodeAuthorizer
from herder.embedded.node_lifecycle import LostNodes
from herder.embedded.node_policy import (
    MACHINE_PREFIX,
    NODE_GROUP,
    NODE_USER,
    POLICIES,
    POLICY_BINDINGS,
    node_policy,
    node_policy_binding,
)
from herder.engine.apiserver.build import ApiServer, assemble
from herder.engine.apiserver.inprocess import InProcess
from herder.engine.apiserver.pki import Pki
from herder.engine.apiserver.request.limits import BODY_BYTES
from herder.engine.client.client import Client
from herder.engine.control.supervision import supervised
from herder.engine.front.http import HttpFront
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupVersionResource, Object
from herder.engine.store import Store, StoreFailed, key_file
from herder.engine.wire import User

log = get_logger(__name__)

MASTER = User("system:herder:server", groups=("system:masters", "system:authenticated"))
RETRY_AFTER = 2.0

_NAMESPACES = GroupVersionResource("", "v1", "namespaces")
_ROLES = GroupVersionResource("rbac.authorization.k8s.io", "v1", "clusterroles")
_BINDINGS = GroupVersionResource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")


async def serve(reported: Configuration, config_dir: Path) -> None:
    """Run until cancelled."""
    directory = reported.data_dir / "server"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki.load_or_create(
        directory / "tls",
        now=_clock(),
        hosts=(*reported.addresses, *reported.names),
        service_accounts=service_account_key(reported.token),
    )
    keys = await asyncio.to_thread(write_encryption_keys, reported)
    server = await assemble(directory / "db", clock=_clock, entropy=os.urandom, pki=pki)
    server.authenticator.token_authenticators.append(_joining(reported.token, reported.agent_token))
    server.deps.authorizer = NodeAuthorizer(server.deps.authorizer, server.deps.store)
    install_node_admission(server.deps.admission, Client(InProcess(server, MASTER)))
    front = HttpFront(server, clock=_clock, body_bytes=BODY_BYTES)
    try:
        await front.listen(reported.address, SECURE_PORT, pki.server_context())
        kubeconfig = config_dir / "herder.yaml"
        _write_private(kubeconfig, yaml.safe_dump(pki.admin_kubeconfig(_url(reported.address))))
        await _run_services(server, reported, kubeconfig, keys)
    finally:
        await front.stop(grace=0)
        await server.stop()


async def _run_services(server: ApiServer, reported: Configuration, kubeconfig: Path, keys: str) -> None:
    client = Client(InProcess(server, MASTER))
    await _let_nodes_join(client)
    node = Node(client, reported, server=True)
    agent = ClusterAgent(kubeconfig, reported.data_dir / "server" / "agent-token")
    health = await serve_health(reported.address, NODE_PORT, node.registered.is_set)
    log.info("serving", address=reported.address)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervised(node.run, name="node"))
            tasks.create_task(supervised(LostNodes(client).run, name="lost-nodes"))
            deploy = partial(_deploy, client, reported.data_dir / "server", agent)
            tasks.create_task(supervised(deploy, name="manifests"))
            tasks.create_task(supervised(agent.run, name="cluster-agent"))
            tasks.create_task(_fail_with_store(server))
            if keys:
                tasks.create_task(_encrypt_again(server.deps.store, reported.data_dir / "server" / "db", keys))
    finally:
        health.close()


async def _fail_with_store(server: ApiServer) -> None:
    """End the process when the store can no longer commit: only a restart finds out what the disk holds."""
    raise await server.deps.store.wait_failed()


async def _encrypt_again(store: Store, directory: Path, keys: str) -> None:
    """Report the keys that are in use, then encrypt everything with the first of them. Tasks of plans read the file."""
    loaded, encrypted = f"loaded {keys} {os.getpid()}", f"encrypted {keys}"
    is_done = encrypted in await asyncio.to_thread(key_file.read_status, directory)
    await asyncio.to_thread(key_file.confirm, directory)
    await asyncio.to_thread(key_file.write_status, directory, loaded, *((encrypted,) if is_done else ()))
    while not is_done:
        try:
            await store.reseal()
            is_done = True
        except StoreFailed as problem:
            log.warning("cannot encrypt Secrets again", problem=str(problem))
            await asyncio.sleep(RETRY_AFTER)
    await asyncio.to_thread(key_file.write_status, directory, loaded, encrypted)


async def _deploy(client: Client, directory: Path, agent: ClusterAgent) -> None:
    """Apply manifests at startup and on SIGHUP."""
    changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, changed.set)
    manifests = Manifests(client, directory / "manifests", directory / "manifests.json")
    while True:
        changed.clear()
        try:
            agent.want(wanted(await manifests.apply()))
        except (StatusError, OSError) as problem:
            log.warning("cannot apply manifests", problem=str(problem))
            asyncio.get_running_loop().call_later(RETRY_AFTER, changed.set)
        await changed.wait()


# --- node registration ----------------------------------------------------------------------------------------------


def _joining(key: str, shared: str) -> Any:
    """Authenticate machines by their own tokens, derived from a key that no worker has.

    `shared` is the former token of all workers, which those without a new plan still use.
    """

    async def authenticate(presented: str) -> User | None:
        machine = machine_of(presented, key)
        if machine is not None:
            return User(f"{MACHINE_PREFIX}{machine}", groups=NODE_USER.groups)
        known = bool(shared) and hmac.compare_digest(presented.encode(errors="replace"), shared.encode())
        return NODE_USER if known else None

    return authenticate


async def _let_nodes_join(client: Client) -> None:
    """Allow nodes to register and to renew their Lease, and nothing else."""
    wanted = (
        (node_policy(), POLICIES),
        (node_policy_binding(), POLICY_BINDINGS),
        (_role(), _ROLES),
        (_binding(), _BINDINGS),
        (_lease_namespace(), _NAMESPACES),
    )
    for obj, resource in wanted:
        await client.apply(resource, obj)


def _role() -> Object:
    verbs = ["get", "create", "update", "patch"]
    rules = [
        {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": verbs},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs},
    ]
    return {**_object("rbac.authorization.k8s.io/v1", "ClusterRole", NODE_GROUP), "rules": rules}


def _binding() -> Object:
    group = "rbac.authorization.k8s.io"
    return {
        **_object(f"{group}/v1", "ClusterRoleBinding", NODE_GROUP),
        "subjects": [{"kind": "Group", "apiGroup": group, "name": NODE_GROUP}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NODE_GROUP},
    }


def _lease_namespace() -> Object:
    return _object("v1", "Namespace", LEASE_NAMESPACE)


def _object(api_version: str, kind: str, name: str) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


# --- helpers --------------------------------------------------------------------------------------------------------


def _url(address: str) -> str:
    return f"https://[{address}]:{SECURE_PORT}" if ":" in address else f"https://{address}:{SECURE_PORT}"


def _clock() -> datetime:
    return datetime.now(UTC)


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    scratch.replace(path)
