"""The Go program stores its records through the relay of a Job, on both engines."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from herder.api.capi.kinds import SECRET
from herder.engine.client.client import Client
from herder.machine.state import archive
from herder.machine.state.kubernetes import SecretClient
from herder.machine.state.relay import relayed
from tests.support.engines import Engine, unique
from tests.support.peers import peer


async def test_the_go_program_saves_and_reads_through_the_relay(engine: Engine, client: Client, tmp_path: Path) -> None:
    name, store = unique("state"), tmp_path / "store"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    await client.create(SECRET.resource, secret, namespace="default")
    environment = os.environ | {"MACHINE_STORAGE_PATH": str(store), "HOME": str(tmp_path)}
    secret_client = SecretClient(engine.connection, "default", name)

    async def stored() -> list[str]:
        found = await client.get(SECRET.resource, name, namespace="default")
        return sorted(archive.unpack(base64.b64decode((found.get("data") or {}).get("extractedConfig") or "")))

    with relayed(secret_client, tmp_path, store_path=str(store), driver="none") as kubeconfig:

        def run(*arguments: str) -> str:
            flags = ("--kubeconfig", str(kubeconfig), "--secret-name", name, "--secret-namespace", "default")
            command = [peer("rancher-machine"), *flags, *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run("create", "--driver", "none", "--url", "tcp://192.0.2.1:22", "m")
        assert f"{store}/machines/m/config.json" in await stored()
        assert run("ls", "-q").startswith("m\n")
        run("rm", "-y", "m")
        assert await stored() == []
