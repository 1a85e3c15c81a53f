"""The process driver: a machine is a directory and a process tree in its own namespaces. It is cheap and needs no
privileges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.drivers.hosted import Hosted
from herder.machine.errors import PreCreateFailed


class Process(Hosted):
    name: ClassVar[str] = "process"
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("process-zone", "Failure domain that the machine reports", env="PROCESS_ZONE"),
        Flag(
            "process-memory",
            "Limit of private memory for each process of the machine, in MB; 0 for no limit",
            FlagType.INT,
            0,
            "PROCESS_MEMORY",
        ),
        Flag(
            "process-ssh-port",
            "SSH port on the address of the machine",
            FlagType.INT,
            2222,
            "PROCESS_SSH_PORT",
        ),
    )

    def options(self, values: Mapping[str, Value]) -> dict[str, Any]:
        memory, port = int(str(values["process-memory"])), int(str(values["process-ssh-port"]))
        if memory < 0:
            raise PreCreateFailed(f"--process-memory: {memory} is negative", "use 0 for no limit")
        if not 1 <= port <= 65535:
            raise PreCreateFailed(f"--process-ssh-port: {port} is not a port number", "use 1024 to 65535")
        return {"zone": values["process-zone"], "memory": memory, "ssh_port": port}
