"""Node agents as services run them, Herder's and the Go one, on plan Secrets of a server; builders of such Secrets."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from herder.agent.build import build
from tests.support.peers import peer

OURS, GO = "herder-agent", "rancher-system-agent"
_TIMEOUT = 30.0
T = TypeVar("T")


def zipapp(directory: Path) -> Path:
    path = directory / "herder-agent.pyz"
    if not path.exists():
        build(path)
    return path


@dataclass
class NodeAgent:
    """One agent with its directories; `start` can be called again after it has stopped."""

    directory: Path
    kubeconfig: str
    namespace: str
    secret: str
    program: str = OURS
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: list[str | Path] | None = None
    process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> NodeAgent:
        self.directory.mkdir(parents=True, exist_ok=True)
        write_private(
            self.directory / "connection.json",
            json.dumps({"kubeConfig": self.kubeconfig, "namespace": self.namespace, "secretName": self.secret}),
        )
        config = {
            "workDirectory": str(self.directory / "work"),
            "appliedPlanDirectory": str(self.directory / "applied"),
            "interlockDirectory": str(self.directory / "interlock"),
            "imagesDirectory": str(self.directory / "images"),
            "agentRegistriesFile": str(self.directory / "registries.yaml"),
            "remoteEnabled": True,
            "connectionInfoFile": str(self.directory / "connection.json"),
        }
        write_private(self.directory / "config.yaml", yaml.safe_dump({**config, **self.settings}))
        (self.directory / "interlock").mkdir(exist_ok=True)
        return self

    def start(self) -> NodeAgent:
        if not (self.directory / "config.yaml").exists():
            self.prepare()
        command_line = self.command
        if command_line is None and self.program == GO:
            command_line = [peer("rancher-system-agent"), "sentinel"]
        elif command_line is None:
            command_line = [self.python, zipapp(self.directory.parent), "sentinel"]
        assert command_line is not None
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        own = {"CATTLE_AGENT_CONFIG": str(self.directory / "config.yaml"), "CATTLE_LOGLEVEL": "debug", "TZ": "UTC"}
        with (self.directory / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                command_line,
                stdout=log,
                stderr=log,
                env={**inherited, **own, **self.environment},
                start_new_session=True,
            )
        return self

    def log(self) -> str:
        return (self.directory / "agent.log").read_text(errors="replace")

    def wait(self, timeout: float = _TIMEOUT) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def resident(self) -> int:
        """Resident memory in bytes."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))

    def __enter__(self) -> NodeAgent:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def write_private(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(content)


# --- plans and their Secrets ----------------------------------------------------------------------------------------


def encoded(data: Mapping[str, str | bytes]) -> dict[str, str]:
    return {
        key: base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
        for key, value in data.items()
    }


def decoded(secret: Mapping[str, Any]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def plan_secret(name: str, data: Mapping[str, str | bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "rke.cattle.io/machine-plan",
        "data": encoded(data),
    }


def sh(script: str, name: str = "it", /, **more: Any) -> dict[str, Any]:
    """An instruction whose output is saved."""
    return {"name": name, "command": "sh", "args": ["-c", script], "saveOutput": True, **more}


def new_plan(*instructions: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A plan with these one-time instructions."""
    return {"instructions": list(instructions), **more}


def unpack(packed: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(gzip.decompress(packed)) if packed else {}
    return value


def decoded_outputs(packed: bytes) -> dict[str, str]:
    """The decoded texts of applied-output and failed-output."""
    return {name: base64.b64decode(text or "").decode() for name, text in unpack(packed).items()}


def eventually(probe: Callable[[], T | None], what: str, timeout: float = _TIMEOUT) -> T:
    deadline = time.monotonic() + timeout
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.02)
    return found
