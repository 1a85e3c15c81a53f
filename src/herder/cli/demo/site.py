"""Machines of the demo and their network: processes of this host, or Debian machines."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from herder.api.rke.sample import Pool, servers_and_workers
from herder.api.settings import IMAGE_ARCHIVES, SERVER_URL
from herder.app.settings import Layers
from herder.cli.cluster.create import DEFAULT_VERSION
from herder.cli.demo.installer import Installer

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK, HOST = "10.99.0.0/24", "10.99.0.1"  # network of the machines; the host is their gateway
# Their kubelets see this host's disk: that it is rather full must not evict pods and images.
ON_A_FULL_DISK = ("eviction-hard=nodefs.available<1%,imagefs.available<1%", "image-gc-high-threshold=100")
NETWORK_VARIABLE = "HERDER_LOCAL_NETWORK"


@dataclass(frozen=True)
class Site:
    """Everything that differs between the two kinds of machines."""

    driver: str
    version: str
    listen: tuple[str, int]
    advertise: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)  # fields of rkeConfig
    machine: Mapping[str, object] = field(default_factory=dict)  # fields of the driver's config

    @property
    def layers(self) -> Layers:
        return Layers(flags=dict(self.settings))

    def pools(self, workers: int) -> list[Pool]:
        return [Pool(pool.name, pool.quantity, pool.roles, self.machine) for pool in servers_and_workers(1, workers)]


def process_site() -> Site:
    return Site("process", DEFAULT_VERSION, ("127.0.0.1", 0))


@contextmanager
def local_site(directory: Path, installer: Callable[[Path], Installer]) -> Iterator[Site]:
    """Debian machines with kubeadm. They pull images from the manager only. `installer` gets the path to build at."""
    if os.geteuid() != 0:
        raise click.ClickException("--driver local needs root for the network of the machines; run it with sudo")
    archives = directory / "images"
    archives.mkdir()
    place = archives / "installer.tar"
    found = installer(place)
    if found.archive != place:
        place.symlink_to(found.archive.absolute())
    _write_agent_image(archives / "agent.tar")
    port = _free_port()
    before = os.environ.get(NETWORK_VARIABLE)
    os.environ[NETWORK_VARIABLE] = NETWORK  # read by the host daemon
    manager = f"https://{HOST}:{port}"
    try:
        yield Site(
            "local",
            found.version,
            ("0.0.0.0", port),  # noqa: S104 - their network is not there before the first of them
            ("127.0.0.1", HOST),
            {SERVER_URL: manager, IMAGE_ARCHIVES: str(archives)},
            {
                "registries": {"mirrors": {"docker.io": {"endpoint": [manager]}}},
                "machineGlobalConfig": {"kubelet-arg": list(ON_A_FULL_DISK)},
            },
            {"kubernetes": True},
        )
    finally:
        if before is None:
            del os.environ[NETWORK_VARIABLE]
        else:
            os.environ[NETWORK_VARIABLE] = before


def _write_agent_image(target: Path) -> None:
    from herder.api.settings import AGENT_IMAGE, DEFINITIONS
    from herder.clusteragent.image import whole
    from herder.oci import write_archive

    with target.open("wb") as archive:
        write_archive(whole(), DEFINITIONS[AGENT_IMAGE].default, archive)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
