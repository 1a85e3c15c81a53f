"""Clusters on `local` machines for operation scenarios: machines of pools, or machines that register themselves."""

from __future__ import annotations

import json
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from herder.api.management.names import DEFAULT_WORKSPACE
from tests.support.clusters.site import CLUSTERS, MIRROR, REGISTRY, Cluster, Object, Site
from tests.support.embedded import HERDER

HERDER_MACHINE = Path(sys.executable).parent / "herder-machine"
INTERFACE = "host0"  # of a machine, in the network of the site


@dataclass(frozen=True)
class Distribution:
    name: str
    version: str
    other_version: str
    objects: Callable[..., list[Object]]
    """The objects of a cluster, by name and roles of its pools, with fields of rkeConfig; the Cluster is the last."""


class OperatedCluster(Cluster):
    """A cluster with groups of machines that have the same roles."""

    @abstractmethod
    def add(self, group: str, count: int = 1) -> None:
        """Request machines."""

    @abstractmethod
    def lose(self, group: str) -> None:
        """Lose all machines of a group with their disks, and delete their Machines."""

    def group(self, name: str) -> list[str]:
        return [machine for machine in self.machines() if f"-{name}-" in machine]

    def until_nodes(self, count: int) -> None:
        """Wait until the cluster is ready with this number of machines."""
        self.site.eventually(lambda: self._joined() == count, f"{count} machines have joined", self.condition_messages)
        self.site(HERDER, "wait", "cluster", self.name, "--timeout", str(self.site.timeout))
        if not self.kubeconfig.exists():
            self.kubeconfig.write_text(self.site(HERDER, "kubeconfig", self.name))

    def _joined(self) -> int:
        return len([each for each in self.machines().values() if "nodeRef" in each.get("status", {})])

    def spec(self) -> Object:
        found: Object = json.loads(
            self.site.kubectl("get", CLUSTERS, self.name, "-n", DEFAULT_WORKSPACE, "-o", "json")
        )["spec"]
        return found

    def control_plane(self) -> Object:
        """The status of the RKEControlPlane."""
        found: Object = json.loads(
            self.site.kubectl("get", "rkecontrolplanes.rke.cattle.io", self.name, "-n", DEFAULT_WORKSPACE, "-o", "json")
        )["status"]
        return found


class PoolCluster(OperatedCluster):
    """A cluster with machine pools."""

    def add(self, group: str, count: int = 1) -> None:
        self.scale(f"{group}={count}")

    def lose(self, group: str) -> None:
        self.site(HERDER, "scale", "cluster", self.name, f"{group}=0", "--give-up-etcd", "--no-wait")
        self.site.eventually(lambda: not self.group(group), "the machines are deleted", self.condition_messages)


class RegisteredCluster(OperatedCluster):
    """A cluster without machine pools. Its machines run the registration command at their first boot."""

    def __init__(self, site: Site, name: str, before: frozenset[str], roles: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(site, name, before)
        self._roles = roles
        self._created = list[str]()

    def add(self, group: str, count: int = 1) -> None:
        roles = ",".join(self._roles[group])
        arguments = ("--roles", roles, "--internal-address", INTERFACE)
        output = self.site(HERDER, "register", self.name, *arguments)
        (command,) = (line for line in output.splitlines() if "system-agent-install.sh" in line)
        script = self.site.directory / f"register-{self.name}-{group}.sh"
        script.touch(mode=0o600)
        script.write_text(f"#!/bin/sh\n{command.replace('| sudo ', '| ')}\n")  # a boot script runs as root
        for _ in range(count):
            machine = f"{self.name}-{group}-{len(self._created)}"
            self._created.append(machine)
            flags = ("--driver", "local", "--local-kubernetes", "--custom-install-script", script)
            self._run("create", *flags, machine)

    def lose(self, group: str) -> None:
        nodes = [name for name in self._created if f"-{group}-" in name]
        self._run("rm", "-y", *nodes)
        self._created = [name for name in self._created if name not in nodes]
        machines = [name for name, each in self.machines().items() if each["status"]["nodeRef"]["name"] in nodes]
        self.site.kubectl("delete", "machines", *machines, "-n", DEFAULT_WORKSPACE, "--wait=false")
        self.site.eventually(
            lambda: not set(machines) & set(self.machines()), "the Machines are deleted", self.condition_messages
        )

    def ssh(self, machine: str, command: str) -> str:
        return self._run("ssh", machine, command)

    def delete(self) -> None:
        super().delete()
        self._run("rm", "-y", *self._created)

    def _run(self, *arguments: str | Path) -> str:
        directory = self.site.manager.directory
        variables = (f"HERDER_DATA_DIR={directory}", f"MACHINE_STORAGE_PATH={self.site.directory / 'machines'}")
        return self.site("env", *variables, HERDER_MACHINE, *arguments)


def create(
    site: Site, name: str, distribution: Distribution, groups: Mapping[str, int], *, registered: bool, **config: object
) -> OperatedCluster:
    """Request a cluster with these groups of machines, and wait until all have joined."""
    objects = distribution.objects(name, groups, registries={"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}, **config)
    pools = objects[-1]["spec"]["rkeConfig"]["machinePools"]
    if not registered:
        requested = site.create_cluster(name, *objects)
        cluster: OperatedCluster = PoolCluster(site, name, requested.before)
    else:
        roles = {pool["name"]: _roles(pool) for pool in pools}
        objects[-1]["spec"]["rkeConfig"]["machinePools"] = []
        kept = [each for each in objects if each["kind"] != "LocalConfig"]
        requested = site.create_cluster(name, *kept)
        cluster = RegisteredCluster(site, name, requested.before, roles)
        for group, count in groups.items():
            cluster.add(group, count)
    cluster.until_nodes(sum(groups.values()))
    return cluster


def _roles(pool: Object) -> tuple[str, ...]:
    fields = {"etcdRole": "etcd", "controlPlaneRole": "controlplane", "workerRole": "worker"}
    return tuple(role for field, role in fields.items() if pool.get(field))
