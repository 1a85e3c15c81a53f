"""The local driver: Debian machines with systemd in Linux namespaces of this host, each with its own address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.drivers.hosted import Hosted
from herder.machine.host.local.options import Options


class Local(Hosted):
    name: ClassVar[str] = "local"
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("local-cpus", "CPU limit, such as 2 or 0.5 (default: no limit)", env="LOCAL_CPUS"),
        Flag("local-memory", "Memory limit in MB (default: no limit)", FlagType.INT, 0, "LOCAL_MEMORY"),
        Flag(
            "local-image",
            "Path on the host of a tar archive of the root directory (default: a Debian image that is built once)",
            env="LOCAL_IMAGE",
        ),
        Flag("local-userdata", "Path of the cloud-init user data, a #cloud-config or a script", env="LOCAL_USERDATA"),
        Flag(
            "local-cloud-init",
            "Run the install script with cloud-init even without user data",
            FlagType.BOOL,
            False,
            "LOCAL_CLOUD_INIT",
        ),
        Flag(
            "local-kubernetes",
            "Provide what a kubelet needs: containerd, devices, writable sysctls and storage without overlayfs",
            FlagType.BOOL,
            False,
            "LOCAL_KUBERNETES",
        ),
        Flag("local-zone", "Failure domain that the machine reports", env="LOCAL_ZONE"),
    )

    def options(self, values: Mapping[str, Value]) -> dict[str, Any]:
        names = ("image", "cpus", "memory", "zone", "cloud_init", "kubernetes")
        return asdict(Options.parse({name: values[f"local-{name.replace('_', '-')}"] for name in names}))
