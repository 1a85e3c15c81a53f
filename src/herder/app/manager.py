"""Composition of a manager: controllers, effect executors and guards for the enabled roles."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from herder.api.guards import GUARDS
from herder.api.guards.observe_only import deny_while_observe_only
from herder.api.management.names import MAKE_KUBECONFIG, PUSH_TOKEN
from herder.api.management.registration import RENEW
from herder.api.management.secret_sync import SYNC_SECRET
from herder.api.rke.etcd.encryption import MAKE_KEY
from herder.api.rke.names import MAKE_AUTHORITIES, MAKE_BOOTSTRAP_DATA, MAKE_TOKENS, READ_OBJECT, READ_REQUEST
from herder.api.settings import SERVED_NODE_AGENT, SETTING, Settings, validate_value
from herder.app import node_agent
from herder.app.host.process import wall_clock
from herder.app.settings import Layers
from herder.app.workload_clusters import allowance, connect
from herder.effects import machines as machine_effects
from herder.effects.bootstrap_data import BootstrapData
from herder.effects.client_kubeconfig import Kubeconfigs
from herder.effects.cluster_ca import ClusterAuthorities
from herder.effects.cluster_kubeconfig import ClusterKubeconfigs
from herder.effects.encryption_key import EncryptionKeys
from herder.effects.join_token import ClusterTokens
from herder.effects.referenced_objects import ReferencedObjects
from herder.effects.registration_token import Delivery, Renewal
from herder.effects.synced_secret import SecretSync
from herder.engine.client.client import Client
from herder.engine.control.cache import Cache, Change, Key
from herder.engine.control.informer import Informer
from herder.engine.control.metrics import Metrics
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Object
from herder.engine.runtime.controller import Controller
from herder.engine.runtime.dynamic import DynamicController
from herder.engine.runtime.manager import Manager
from herder.engine.runtime.performers import REMOTE_PERFORMERS
from herder.gateway.nodes.machine_requests import RequestReader
from herder.workload.serving import Workloads

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Roles:
    """Which parts of a manager run in this process."""

    core: bool = False  # Cluster API core
    in_memory: bool = False  # in-memory provider (simulated clusters)
    machines: bool = False  # machine provider (node drivers)
    gateway: bool = False  # managed clusters and users
    example: bool = False


def controllers(roles: Roles) -> list[Controller]:
    chosen: list[Controller] = []
    if roles.core:
        chosen += core_controllers()
    if roles.in_memory:
        chosen += in_memory_controllers()
    if roles.machines:
        chosen += machine_controllers()
    if roles.gateway:
        chosen += management_controllers()
    if roles.example:
        from herder.controllers.example.flock import CONTROLLER

        chosen.append(CONTROLLER)
    return chosen


def core_controllers() -> list[Controller]:
    from herder.controllers.capi.cluster import controller as cluster
    from herder.controllers.capi.machine import controller as machine
    from herder.controllers.capi.machinedeployment import controller as machine_deployment
    from herder.controllers.capi.machinehealthcheck import controller as machine_health_check
    from herder.controllers.capi.machineset import controller as machine_set

    modules = (cluster, machine, machine_set, machine_deployment, machine_health_check)
    return [module.CONTROLLER for module in modules]


def in_memory_controllers() -> list[Controller]:
    from herder.controllers.inmemory import bootstrap, cluster, controlplane, machine

    return [module.CONTROLLER for module in (cluster, controlplane, bootstrap, machine)]


def machine_controllers() -> list[Controller]:
    from herder.controllers.machines import archive, cloud_credentials, dynamic_schemas, node_drivers
    from herder.machine.drivers import create_flags

    modules = (dynamic_schemas, cloud_credentials, archive)
    return [node_drivers.controller(create_flags), *(module.CONTROLLER for module in modules)]


def management_controllers() -> list[Controller]:
    from herder.controllers.identity import (
        cluster_bindings,
        cluster_policies,
        creators,
        default_projects,
        global_bindings,
        global_roles,
        leftover_bindings,
        project_bindings,
        projects,
        users,
    )
    from herder.controllers.provisioning import cluster_registration_token, synced_secret
    from herder.controllers.provisioning.cluster import controller as provisioning_cluster
    from herder.controllers.provisioning.management_cluster import controller as management_cluster

    clusters = (provisioning_cluster, management_cluster, cluster_registration_token, synced_secret)
    users_and_roles = (users, creators, global_roles, global_bindings, cluster_bindings)
    identity = (*users_and_roles, default_projects, projects, project_bindings, cluster_policies, leftover_bindings)
    return [*(module.CONTROLLER for module in (*clusters, *identity)), *provisioning_controllers()]


def provisioning_controllers() -> list[Controller]:
    """Controllers of provisioned clusters. They start once the Cluster API CRDs exist, whoever installs them."""
    from herder.controllers.provisioning import cluster_agent, provisioning_log, rke_cluster, rke_control_plane

    modules = (rke_cluster, rke_control_plane, provisioning_log, cluster_agent)
    others = (provisioning_log.ARCHIVE, cluster_agent.MOVE)
    return [*(module.CONTROLLER for module in modules), *others, *node_controllers(), *planners()]


def node_controllers() -> list[Controller]:
    """Controllers for machines of provisioned clusters: bootstrap, custom machines, and Node lookup."""
    from herder.controllers.bootstrap import rke_bootstrap, tokens
    from herder.controllers.machines import node_lookup
    from herder.controllers.machines.custom import machines, requests

    return [module.CONTROLLER for module in (rke_bootstrap, tokens, requests, machines, node_lookup)]


def planners() -> list[Controller]:
    """Controllers that compute and roll out plans."""
    from herder.controllers.planner import controller, etcd_snapshot, removed_nodes
    from herder.controllers.planner.drain import controller as machine_drains
    from herder.controllers.planner.etcd import member
    from herder.controllers.planner.plan import secret

    return [module.CONTROLLER for module in (controller, etcd_snapshot, secret, machine_drains, member, removed_nodes)]


def dynamic_controllers(roles: Roles) -> list[DynamicController]:
    if not roles.machines:
        return []
    from herder.controllers.machines.provision.controller import dynamic_controller

    return [
        dynamic_controller(MappingProxyType(dict(os.environ)))
    ]  # a snapshot, because decisions must be deterministic


async def random_key(arguments: Mapping[str, Any]) -> str:
    """Random key in base64, for the data of a Secret."""
    return base64.b64encode(secrets.token_bytes(arguments["bytes"])).decode()


def create_manager(
    client: Client,
    settings: Settings,
    roles: Roles,
    *,
    workloads: Workloads | None = None,
    managed: Callable[[str], Awaitable[Client]] | None = None,
    metrics: Metrics | None = None,
) -> Manager:
    """`managed` returns a client of a cluster behind its agent tunnel, by ID."""

    allowed = allowance(settings.get, workloads.serves if workloads is not None else None)

    async def connect_to(cluster: str) -> Client:
        if managed is not None and "/" not in cluster:
            return await managed(cluster)
        return await connect(client, cluster, allowed)

    return Manager(
        client,
        controllers(roles),
        dynamic_controllers=dynamic_controllers(roles),
        clock=wall_clock,
        entropy=os.urandom,
        guards=GUARDS,
        withhold=deny_while_observe_only,
        performers={
            "random-key": random_key,
            "kubeconfig": Kubeconfigs(client, wall_clock).make,
            **(workloads.performers() if workloads is not None else {}),
            **(machine_effects.performers(client, settings) if roles.machines else {}),
            RENEW: Renewal(client, wall_clock, os.urandom),
            PUSH_TOKEN: Delivery(client, lambda cluster: connect(client, cluster, allowed)),
            MAKE_TOKENS: ClusterTokens(client, os.urandom),
            MAKE_AUTHORITIES: ClusterAuthorities(client, wall_clock),
            MAKE_KEY: EncryptionKeys(client, os.urandom),
            READ_OBJECT: ReferencedObjects(client),
            MAKE_BOOTSTRAP_DATA: BootstrapData(client, settings.get),
            READ_REQUEST: RequestReader(client),
            MAKE_KUBECONFIG: ClusterKubeconfigs(client, entropy=os.urandom, setting=settings.get),
        },
        remote_performers={**REMOTE_PERFORMERS, SYNC_SECRET: SecretSync(client)},
        connect=connect_to,
        setting=settings.get,
        metrics=metrics,
    )


class WatchedSettings:
    """Current `Setting` objects: the layer of settings that changes at runtime."""

    def __init__(self, client: Client) -> None:
        self._cache = Cache(SETTING)
        self._informer = Informer(client, self._cache, _log_invalid)

    def __call__(self, name: str) -> Object | None:
        return self._cache.get(Key("", name))

    async def run(self) -> None:
        await self._informer.run()

    async def ready(self) -> None:
        await self._informer.synced.wait()


def _log_invalid(change: Change) -> None:
    """API servers without our admission accept any value in a Setting."""
    if change.new is not None:
        for problem in validate_value(change.key.name, change.new.get("value") or ""):
            log.warning("setting ignored", setting=change.key.name, problem=str(problem))


def settings_from(
    layers: Layers, objects: Callable[[str], Object | None], found: Mapping[str, str] | None = None
) -> Settings:
    detected = {SERVED_NODE_AGENT: node_agent.served(), **(found or {})}
    return Settings(flags=layers.flags, environment=os.environ, objects=objects, file=layers.file, detected=detected)
