"""Machines that are a real Debian with systemd in Linux namespaces of this host, each with its own address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from herder.api.machines.flags import Flag, FlagType, Value
from herder.machine.drivers.hosted import Hosted
from herder.machine.host.local.options import Options


class Local(Hosted):
    name: ClassVar[str] = "local"
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("local-cpus", "How many CPUs it may use, as 2 or 0.5; all if not given", env="LOCAL_CPUS"),
        Flag("local-memory", "Its memory in MB; no limit if not given", FlagType.INT, 0, "LOCAL_MEMORY"),
        Flag(
            "local-image",
            "Path on the host of a tar of the root directory it starts from; Debian, built once, if not given",
            env="LOCAL_IMAGE",
        ),
        Flag("local-userdata", "Path of user data for cloud-init: #cloud-config or a script", env="LOCAL_USERDATA"),
        Flag(
            "local-cloud-init",
            "Let cloud-init run the install script, even where there is no user data",
            FlagType.BOOL,
            False,
            "LOCAL_CLOUD_INIT",
        ),
        Flag(
            "local-kubernetes",
            "Give it what a kubelet needs: containerd, devices, writable settings, storage that is not an overlay",
            FlagType.BOOL,
            False,
            "LOCAL_KUBERNETES",
        ),
        Flag("local-zone", "Failure domain that the machine says it is in", env="LOCAL_ZONE"),
    )

    def options(self, values: Mapping[str, Value]) -> dict[str, Any]:
        names = ("image", "cpus", "memory", "zone", "cloud_init", "kubernetes")
        return asdict(Options.parse({name: values[f"local-{name.replace('_', '-')}"] for name in names}))
