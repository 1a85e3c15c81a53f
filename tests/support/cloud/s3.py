"""A real S3 server on loopback: versitygw over a directory, with TLS from a private CA."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from herder.snapshots.config import S3Config
from herder.snapshots.errors import SnapshotError
from herder.snapshots.s3.client import Bucket
from tests.support.canaries import canary
from tests.support.kube import Authority, free_port
from tests.support.peers import peer

ACCESS_KEY = "snapshots"
SECRET_KEY = canary("s3 secret")
BUCKET = "snaps"


class S3Server:
    """Objects are files in `objects/BUCKET/KEY`, so a test can damage them.

    `command_prefix`: a command that enters a network namespace, in which the server has this address.
    """

    def __init__(self, directory: Path, address: str = "127.0.0.1", command_prefix: tuple[str, ...] = ()) -> None:
        self.authority = Authority(directory / "pki")
        self.objects = directory / "objects"
        (self.objects / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self.endpoint = f"{address}:{self.port}"
        self._address = address
        self._command_prefix = command_prefix
        self._listen = f":{self.port}" if command_prefix else self.endpoint
        self._log = directory / "versitygw.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        cert, key = self.authority.issue("s3", server=True, addresses=(self._address,))
        command: list[str | Path] = [
            *self._command_prefix,
            peer("versitygw"),
            "--port",
            self._listen,
            "--cert",
            cert,
            "--key",
            key,
            "--quiet",
            "posix",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, self.objects],
                env={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "PATH": "/usr/sbin:/usr/bin:/bin"},
                stdout=log,
                stderr=log,
            )
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It accepts connections, and answers none of them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The section `s3` of the configuration."""
        return {
            "endpoint": self.endpoint,
            "endpointCA": self.authority.path.read_text(),
            "bucket": BUCKET,
            "region": "us-east-1",
            "folder": "farm/one",
            "accessKey": ACCESS_KEY,
            "secretKey": SECRET_KEY,
            **changes,
        }

    def config(self, **changes: Any) -> S3Config:
        names = {
            "endpointCA": "endpoint_ca",
            "accessKey": "access_key",
            "secretKey": "secret_key",
            "skipSSLVerify": "skip_ssl_verify",
        }
        return S3Config(**{names.get(name, name): value for name, value in self.settings(**changes).items()})

    def file(self, key: str) -> Path:
        return self.objects / BUCKET / key

    def keys(self) -> list[str]:
        root = self.objects / BUCKET
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if ".sgwtmp" not in path.parts)

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                return self._check()
            except (SnapshotError, subprocess.CalledProcessError):
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(self._log.read_text()) from None
                time.sleep(0.1)

    def _check(self) -> None:
        if self._command_prefix:
            command: list[str | Path] = [
                *self._command_prefix,
                "curl",
                "--silent",
                "--cacert",
                self.authority.path,
                f"https://127.0.0.1:{self.port}/",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=30)
            return
        with closing(Bucket(self.config())) as bucket:
            bucket.check()
