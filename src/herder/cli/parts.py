"""What a manager is made of: which controllers run, who performs their effects, which guards stand before them."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from herder.api.guards import GUARDS
from herder.api.management.names import MAKE_KUBECONFIG, PUSH_TOKEN
from herder.api.management.registration import RENEW
from herder.api.management.syncing import SYNC_SECRET
from herder.api.rke.names import MAKE_AUTHORITIES, MAKE_BOOTSTRAP_DATA, MAKE_TOKENS, READ_OBJECT, READ_REQUEST
from herder.api.settings import SETTING, Settings, validate_value
from herder.cli import machine_effects
from herder.cli.clusters import allowance, connect
from herder.cli.process import wall_clock
from herder.cli.settings import Layers
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
from herder.gateway.cluster_authorities import ClusterAuthorities
from herder.gateway.cluster_kubeconfigs import ClusterKubeconfigs
from herder.gateway.cluster_tokens import ClusterTokens
from herder.gateway.kubeconfigs import Kubeconfigs
from herder.gateway.nodes.bootstrap_data import BootstrapData
from herder.gateway.nodes.requests import RequestReader
from herder.gateway.referenced_objects import ReferencedObjects
from herder.gateway.registration_tokens import Delivery, Renewal
from herder.gateway.synced_secrets import SecretSync
from herder.workload.serving import Workloads

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Roles:
    """What of all that a manager can do it does here."""

    core: bool = False  # Cluster API's core
    in_memory: bool = False  # the provider of clusters that exist as API alone
    machines: bool = False  # the provider of machines by node drivers
    gateway: bool = False  # managed clusters, and who may use them
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
        first_projects,
        global_bindings,
        global_roles,
        leftover_bindings,
        project_bindings,
        projects,
        users,
    )
    from herder.controllers.provisioning import (
        management_clusters,
        provisioning_clusters,
        registration_tokens,
        synced_secrets,
    )

    clusters = (provisioning_clusters, management_clusters, registration_tokens, synced_secrets)
    people = (users, creators, global_roles, global_bindings, cluster_bindings)
    identity = (*people, first_projects, projects, project_bindings, cluster_policies, leftover_bindings)
    return [*(module.CONTROLLER for module in (*clusters, *identity)), *provisioning_controllers()]


def provisioning_controllers() -> list[Controller]:
    """Of clusters that are built here. They begin once Cluster API's kinds are there, whoever brings them."""
    from herder.controllers.provisioning import provisioning_logs, rke_clusters, rke_control_planes
    from herder.controllers.provisioning.generation import controller as generation

    modules = (generation, rke_clusters, rke_control_planes, provisioning_logs)
    return [*(module.CONTROLLER for module in modules), provisioning_logs.ARCHIVE, *node_controllers(), *planners()]


def node_controllers() -> list[Controller]:
    """Of the machines of those clusters: what they run first, those that others made, and their Nodes."""
    from herder.controllers.bootstrap import bootstraps, tokens
    from herder.controllers.machines import node_lookup
    from herder.controllers.machines.custom import machines, requests

    return [module.CONTROLLER for module in (bootstraps, tokens, requests, machines, node_lookup)]


def planners() -> list[Controller]:
    """What decides which machine does what next."""
    from herder.controllers.planner import controller, etcd_members, machine_drains, plan_secrets

    return [module.CONTROLLER for module in (controller, plan_secrets, machine_drains, etcd_members)]


def dynamic_controllers(roles: Roles) -> list[DynamicController]:
    if not roles.machines:
        return []
    from herder.controllers.machines.provision.controller import family

    return [family(MappingProxyType(dict(os.environ)))]  # as it is now: decisions follow from what they are given


async def random_key(arguments: Mapping[str, Any]) -> str:
    """Base64, as a Secret's data wants it."""
    return base64.b64encode(secrets.token_bytes(arguments["bytes"])).decode()


def make_manager(
    client: Client,
    settings: Settings,
    roles: Roles,
    *,
    workloads: Workloads | None = None,
    managed: Callable[[str], Awaitable[Client]] | None = None,
    metrics: Metrics | None = None,
) -> Manager:
    """`managed`: the way to clusters that are reached through their agent's tunnel, by their id."""

    allowed = allowance(settings.get, workloads.serves if workloads is not None else None)

    async def reach(cluster: str) -> Client:
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
        performers={
            "random-key": random_key,
            "kubeconfig": Kubeconfigs(client, wall_clock).make,
            **(workloads.performers() if workloads is not None else {}),
            **(machine_effects.performers(client, settings) if roles.machines else {}),
            RENEW: Renewal(client, wall_clock, os.urandom),
            PUSH_TOKEN: Delivery(client, lambda cluster: connect(client, cluster, allowed)),
            MAKE_TOKENS: ClusterTokens(client, os.urandom),
            MAKE_AUTHORITIES: ClusterAuthorities(client, wall_clock),
            READ_OBJECT: ReferencedObjects(client),
            MAKE_BOOTSTRAP_DATA: BootstrapData(client, settings.get),
            READ_REQUEST: RequestReader(client),
            MAKE_KUBECONFIG: ClusterKubeconfigs(client, entropy=os.urandom, setting=settings.get),
        },
        remote_performers={**REMOTE_PERFORMERS, SYNC_SECRET: SecretSync(client)},
        connect=reach,
        setting=settings.get,
        metrics=metrics,
    )


class WatchedSettings:
    """`Setting` objects as they are now: the layer of settings that changes while running."""

    def __init__(self, client: Client) -> None:
        self._cache = Cache(SETTING)
        self._informer = Informer(client, self._cache, _tell_unusable)

    def __call__(self, name: str) -> Object | None:
        return self._cache.get(Key("", name))

    async def run(self) -> None:
        await self._informer.run()

    async def ready(self) -> None:
        await self._informer.synced.wait()


def _tell_unusable(change: Change) -> None:
    """A server that is not ours lets anything into a Setting."""
    if change.new is not None:
        for problem in validate_value(change.key.name, change.new.get("value") or ""):
            log.warning("setting ignored", setting=change.key.name, problem=str(problem))


def settings_from(
    layers: Layers, objects: Callable[[str], Object | None], found: Mapping[str, str] | None = None
) -> Settings:
    return Settings(flags=layers.flags, environment=os.environ, objects=objects, file=layers.file, found=found or {})
