"""All metrics by topic, and which process exposes them. `docs/metrics.md` is written from this list."""

from __future__ import annotations

from dataclasses import dataclass

from herder.app.metrics import caches, certificates, clusters, gateway, operations, store
from herder.engine.control import metrics as control
from herder.engine.control.metric_family import MetricFamily, counter, gauge

BOTH = "the embedded server and the manager"
EMBEDDED = "the embedded server"
WITH_GATEWAY = "the embedded server, and the manager with `--gateway-listen`"

PROCESS = (
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
    gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
    counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds."),
    gauge("process_open_fds", "Number of open file descriptors."),
    gauge("process_max_fds", "Maximum number of open file descriptors."),
)
"""Those of the Prometheus client."""


@dataclass(frozen=True, slots=True)
class Topic:
    title: str
    exposed_by: str
    families: tuple[MetricFamily, ...]
    note: str = ""


_LEADER_ONLY = "Only the replica that leads counts objects; the others report none."
TOPICS = (
    Topic("Controllers and queues", BOTH, control.FAMILIES),
    Topic("Caches", BOTH, caches.FAMILIES, _LEADER_ONLY),
    Topic("Clusters, machines and node agents", BOTH, clusters.FAMILIES, _LEADER_ONLY),
    Topic("Operations", BOTH, operations.FAMILIES, _LEADER_ONLY),
    Topic("Certificates", BOTH, (certificates.EXPIRY,), _LEADER_ONLY),
    Topic("Tunnels", WITH_GATEWAY, gateway.TUNNEL_FAMILIES),
    Topic("Connections of node agents", WITH_GATEWAY, gateway.NODE_FAMILIES),
    Topic("HTTP listener", WITH_GATEWAY, gateway.HTTP_FAMILIES),
    Topic("Store", EMBEDDED, store.FAMILIES),
    Topic("Backups of the store", f"{EMBEDDED}, with `--backup-schedule`", store.BACKUP_FAMILIES),
    Topic("Process", BOTH, PROCESS),
)

FAMILIES = {family.name: family for topic in TOPICS for family in topic.families}
