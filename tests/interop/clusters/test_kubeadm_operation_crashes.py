"""Operations of a kubeadm cluster in which an actor is killed: a sample of the crash matrix on a real cluster.

The tests run in the order of the file: each continues with the cluster of the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from herder.api.management.names import DEFAULT_WORKSPACE
from herder.api.rke import operations
from herder.machine.host.client import HostClient, HostedMachine
from tests.support.clusters.kubeadm_clusters import VERSION, kubeadm_cluster, programs, push_installer
from tests.support.clusters.kubeadm_rotations import await_service
from tests.support.clusters.operation_crashes import (
    ACTORS,
    AGENT,
    API_SERVER,
    COMMANDS,
    MACHINE,
    MANAGER,
    cells,
    kill_in_phase,
    restart_machine,
    restart_manager,
)
from tests.support.clusters.site import MIRROR, REGISTRY, Cluster, Site, site_in
from tests.support.embedded import HERDER, Embedded

pytestmark = pytest.mark.soak

NAME = "farm"
PROCESSES = {AGENT: "systemctl kill --signal=KILL rancher-system-agent", API_SERVER: "pkill -9 -x kube-apiserver"}


class CrashingCluster(Cluster):
    def request(self, *command: str) -> None:
        first, second, *more = command
        self.site(HERDER, first, second, NAME, *more)

    def operation(self) -> object:
        return json.loads(self.site(HERDER, "operations", NAME, "-o", "json"))["operation"]

    def write(self, name: str) -> None:
        manifest = self.kubectl("create", "configmap", name, "--dry-run=client", "-o", "json")
        self.kubectl("apply", "-f", "-", stdin=manifest)

    def names(self) -> set[str]:
        found = self.kubectl("get", "configmaps", "-o", "name").split()
        return {name.removeprefix("configmap/") for name in found} - {"kube-root-ca.crt"}

    def until_nodes_match_machines(self) -> None:
        self.site(HERDER, "wait", "cluster", NAME, "--timeout", str(self.site.timeout))
        await_service(self)
        self.site.eventually(lambda: set(self.nodes()) == set(self.machines()), "each Node has a machine")

    def kill(self, actor: str) -> None:
        (server,) = (name for name in self.machines() if "-servers-" in name)
        if actor == MANAGER:
            assert isinstance(self.site.manager, Embedded)
            restart_manager(self.site.manager)
        elif actor == MACHINE:
            restart_machine(self._hosted(server))
        else:  # it may be stopped in this phase
            self.site(HERDER, "ssh", server, "-n", DEFAULT_WORKSPACE, "--", PROCESSES[actor], check=False)

    def _hosted(self, machine: str) -> HostedMachine:
        (directory,) = (each for each in self.site.machine_directories() if machine in each.name)
        record = json.loads((directory / "machine.json").read_text())
        client = HostClient.of(self.site.manager.directory / "host")
        return client.machine(record["kind"], record["scope"], record["name"], record["token"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory: Path = tmp_path_factory.mktemp("site")
    with site_in(directory, {}, timeout=600, pods=True) as site:
        push_installer(site, VERSION, programs(directory / "programs"))
        yield site


@pytest.fixture(scope="module")
def farm(site: Site) -> CrashingCluster:
    """One server and one worker."""
    registries = {"mirrors": {REGISTRY: {"endpoint": [MIRROR]}}}
    created = site.create_cluster(NAME, *kubeadm_cluster(NAME, {"servers": 1, "workers": 1}, registries=registries))
    farm = CrashingCluster(created.site, created.name, created.before)
    farm.until_ready("servers=1")
    return farm


@pytest.fixture(scope="module")
def snapshot(farm: CrashingCluster) -> str:
    """The snapshot that is restored."""
    farm.write("before")
    farm.request("snapshot", "create")
    (found,) = farm.site.listed("etcdsnapshots.rke.cattle.io")
    return str(found["metadata"]["name"])


def actors_of(kind: str) -> Sequence[str]:
    """All actors in restores, and two of them in each other operation: a cell takes a minute or two."""
    first = 2 * ([*COMMANDS].index(kind) % 2)
    return ACTORS if kind == operations.RESTORE else ACTORS[first : first + 2]


@pytest.mark.parametrize(("kind", "phase", "actor"), [*cells(actors_of)])
def test(farm: CrashingCluster, snapshot: str, kind: str, phase: str, actor: str) -> None:
    kill_in_phase(farm, snapshot, kind, phase, actor)


def test_deletion_leaves_nothing(farm: CrashingCluster) -> None:
    farm.assert_deletion_leaves_nothing()
