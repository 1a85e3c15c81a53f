"""Run the cluster agent as a process next to the API server, as its Deployment specifies, because there are no pods."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from herder.api.management.manifest import BOOTSTRAP_NAME, NAME
from herder.engine.logs import get_logger
from herder.engine.meta.kinds import Object

log = get_logger(__name__)

PAUSE_SECONDS = 2.0
GRACE_SECONDS = 5.0
_NAMES = (NAME, BOOTSTRAP_NAME)


@dataclass(frozen=True, slots=True)
class Wanted:
    environment: tuple[tuple[str, str], ...]
    token: str

    def __repr__(self) -> str:
        return "Wanted(…)"


def wanted(objects: Sequence[Object]) -> Wanted | None:
    """Return the Deployment's environment and the mounted credentials, from the manifests' objects."""
    agents = [each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] in _NAMES]
    deployment = next(iter(agents), None)
    if deployment is None:
        return None
    pod = deployment["spec"]["template"]["spec"]
    environment = [(each["name"], each.get("value", "")) for each in pod["containers"][0].get("env") or ()]
    mounted = {each["secret"]["secretName"] for each in pod.get("volumes") or () if "secret" in each}
    for each in objects:
        if each["kind"] == "Secret" and each["metadata"]["name"] in mounted:
            token = base64.b64decode((each.get("data") or {}).get("token", "")).decode()
            return Wanted(tuple(environment), token)
    return None


class ClusterAgent:
    """One process, restarted when it ends or its specification changes."""

    def __init__(self, kubeconfig: Path, token_file: Path) -> None:
        self._kubeconfig = kubeconfig
        self._token_file = token_file
        self._wanted: Wanted | None = None
        self._changed = asyncio.Event()

    def want(self, wanted: Wanted | None) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            if self._wanted is None:
                await self._changed.wait()
                continue
            process = await self._start(self._wanted)
            try:
                await self._wait_exit_status(process)
            finally:
                await _end(process)

    async def _start(self, wanted: Wanted) -> asyncio.subprocess.Process:
        descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(wanted.token)
        reported = ("--kubeconfig", str(self._kubeconfig), "--token-file", str(self._token_file))
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "herder.clusteragent", *reported),
            env={**os.environ, **dict(wanted.environment)},
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def _wait_exit_status(self, process: asyncio.subprocess.Process) -> None:
        ended, changed = asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._changed.wait())
        try:
            done, _ = await asyncio.wait((ended, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            changed.cancel()
        if ended in done:
            log.warning("cluster agent exited", status=process.returncode)
            await asyncio.sleep(PAUSE_SECONDS)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
