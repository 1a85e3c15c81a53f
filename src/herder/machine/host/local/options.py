"""Options of `local` machines, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from herder.machine.errors import PreCreateFailed

SMALLEST_MEMORY = 64  # MB; systemd and sshd need at least this much


@dataclass(frozen=True, slots=True)
class Options:
    image: str = ""  # path of a tar archive; default: our Debian image
    cpus: float = 0.0  # 0: no limit
    memory: int = 0  # MB; 0: no limit
    zone: str = ""
    cloud_init: bool = False  # use cloud-init even if the script alone does not need it
    kubernetes: bool = False  # provide what a kubelet needs

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        return cls(
            image=str(given.get("image") or ""),
            cpus=_cpus(str(given.get("cpus") or "0")),
            memory=_memory(str(given.get("memory") or "0")),
            zone=str(given.get("zone") or ""),
            cloud_init=bool(given.get("cloud_init")),
            kubernetes=bool(given.get("kubernetes")),
        )

    @property
    def memory_bytes(self) -> int:
        return self.memory * 1024 * 1024


def _cpus(text: str) -> float:
    try:
        cpus = float(text)
    except ValueError:
        cpus = -1.0
    if not (cpus == 0 or 0.01 <= cpus <= 1024):
        raise PreCreateFailed(
            f"--local-cpus: {text} is not a number of CPUs", "use a number from 0.01 to 1024, such as 2 or 0.5"
        )
    return cpus


def _memory(text: str) -> int:
    if not text.isdecimal():
        raise PreCreateFailed(f"--local-memory: {text} is not a number of megabytes", "use a number such as 512")
    if 0 < int(text) < SMALLEST_MEMORY:
        raise PreCreateFailed(f"--local-memory: {text} is too small", f"use at least {SMALLEST_MEMORY} MB")
    return int(text)
