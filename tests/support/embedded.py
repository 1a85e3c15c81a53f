"""The embedded server as users run it: the `herder up` command in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.support.canaries import assert_no_secrets, in_logs, in_store

HERDER = Path(sys.executable).parent / "herder"


class Embedded:
    """`herder up` without Cluster API, machines and gateway by default, like the kube-apiserver it is compared with."""

    def __init__(
        self,
        directory: Path,
        *,
        flags: tuple[str, ...] = ("--capi-core=external", "--no-machines"),
        listen: str = "127.0.0.1:0",
        command_prefix: tuple[str, ...] = (),
        program: Path = HERDER,
    ) -> None:
        """`command_prefix` is a command prefix, such as one that enters a network namespace."""
        self.program = program
        self.directory = directory
        self.flags = flags if "--gateway" in flags else (*flags, "--no-gateway")
        self.listen = listen
        self.command_prefix = command_prefix
        self.kubeconfig = directory / "kubeconfig"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Embedded:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.unlink(missing_ok=True)
        with (self.directory / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.command_prefix,
                    self.program,
                    "up",
                    "--data-dir",
                    self.directory,
                    "--listen",
                    self.listen,
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while not self.kubeconfig.exists():  # written once the server is ready
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"herder up did not become ready:\n{self.log()[-3000:]}")
            time.sleep(0.005)
        return self

    @property
    def url(self) -> str:
        config = yaml.safe_load(self.kubeconfig.read_text())
        return str(config["clusters"][0]["cluster"]["server"])

    def log(self) -> str:
        return (self.directory / "up.log").read_text(errors="replace")

    def stop(self) -> int:
        """Stop it with SIGTERM and return the exit status. It must not have leaked a secret."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert_no_secrets(in_store(self.directory / "store"), in_logs(self.directory))
        return status

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Embedded:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
