"""Tasks: what operations make a machine do besides its plan. The distribution renders the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Work on one machine, once. `mark` identifies the attempt and is part of the instructions."""

    mark: str


@dataclass(frozen=True)
class SaveSnapshot(Task):
    """Save a snapshot of etcd, also to S3 if the cluster has a bucket."""


@dataclass(frozen=True)
class RotateCertificates(Task):
    """Issue new certificates, of all services or of the named ones, and restart what uses them."""

    services: Sequence[str] = ()


class UnsupportedTask(ValueError):
    """The distribution cannot do this. The message says what to do instead."""
