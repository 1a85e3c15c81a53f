"""Simulated S3 server: buckets of snapshots, credentials, a CA, and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from herder.sim.host.disk import Snapshot


class S3Error(Exception):
    """A request failed; the message is that of the S3 client in K3s."""


@dataclass(slots=True)
class SimulatedS3:
    """One endpoint. Tests set its faults."""

    endpoint: str = "s3.sim:9000"
    access_key: str = "access"
    secret_key: str = "secret"
    authority: str = ""  # CA certificate in PEM; empty: a public one
    buckets: dict[str, dict[str, Snapshot]] = field(default_factory=dict)
    refuses: bool = False  # nothing listens
    truncates: bool = False  # downloads end early
    requests: int = 0

    def bucket(self, settings: S3Settings) -> dict[str, Snapshot]:
        """The requested bucket. Raises S3Error."""
        self.requests += 1
        if not settings.bucket and not settings.endpoint:
            raise S3Error("s3 configuration was not set")
        test = f"failed to test for existence of bucket {settings.bucket}: "
        head = f'{test}Head "https://{settings.endpoint}/{settings.bucket}/": '
        if self.refuses or settings.endpoint != self.endpoint:
            raise S3Error(f"{head}dial tcp {settings.endpoint}: connect: connection refused")
        if self.authority and not settings.skip_verify and settings.authority.strip() != self.authority.strip():
            raise S3Error(f"{head}tls: failed to verify certificate: x509: certificate signed by unknown authority")
        if (settings.access_key, settings.secret_key) != (self.access_key, self.secret_key):
            raise S3Error(f"{test}Access Denied.")
        if settings.bucket not in self.buckets:
            raise S3Error(f"bucket {settings.bucket} does not exist")
        return self.buckets[settings.bucket]

    def download(self, settings: S3Settings, name: str) -> Snapshot:
        found = self.bucket(settings).get(settings.key(name))
        if found is None:
            raise S3Error("The specified key does not exist.")
        return replace(found, damage="truncated") if self.truncates else found


@dataclass(frozen=True, slots=True)
class S3Settings:
    """What a client is configured with."""

    endpoint: str
    bucket: str
    folder: str = ""
    region: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    authority: str = ""
    skip_verify: bool = False
    retention: int = 5

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def location(self, name: str) -> str:
        return f"s3://{self.bucket}/{self.key(name)}"


def named(bucket: Mapping[str, Any], settings: S3Settings) -> list[str]:
    """Names of the objects in the configured folder."""
    prefix = settings.key("")
    return [key.removeprefix(prefix) for key in bucket if key.startswith(prefix) and "/" not in key[len(prefix) :]]
