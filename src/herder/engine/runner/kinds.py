"""Resources that the node and the Job controller use, and Kubernetes timestamps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from herder.engine.meta.kinds import GroupVersionResource, Kind

POD = Kind("", "v1", "Pod", "pods")
JOB = Kind("batch", "v1", "Job", "jobs")
PODS = POD.resource
NODES = GroupVersionResource("", "v1", "nodes")
SECRETS = GroupVersionResource("", "v1", "secrets")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
SERVICE_ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
EVENTS = GroupVersionResource("", "v1", "events")
JOBS = JOB.resource
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
ACCESS_REVIEWS = GroupVersionResource("authorization.k8s.io", "v1", "subjectaccessreviews")

Clock = Callable[[], datetime]


def timestamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_seconds(seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)
