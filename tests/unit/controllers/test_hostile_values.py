"""Hostile values in annotations, labels and Secrets that users may edit: none raises an exception."""

from __future__ import annotations

import base64
import gc
import hashlib
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from herder.api import settings
from herder.api.capi.rollout import scaled
from herder.api.durations import MAX_DURATION, duration, version_numbers
from herder.api.go_durations import whole_seconds
from herder.api.identity.authn.tokens import from_secret
from herder.api.inmemory.behavior import behavior_of
from herder.api.inmemory.names import NODE_CONDITIONS
from herder.api.machines import state
from herder.api.machines.drivers import schemas
from herder.api.machines.names import hostname
from herder.api.management import manifest
from herder.api.management.manifest import as_yaml
from herder.api.management.registration import Lifetime
from herder.api.numbers import parse_int64
from herder.api.rke import cluster_spec
from herder.api.rke.machine_config.errors import ConfigError
from herder.api.rke.machines import strategy
from herder.app import workload_clusters
from herder.controllers.capi.machinedeployment.revisions import REVISION, revision_of
from herder.controllers.capi.machinehealthcheck.rate_limit import REMEDIATION_PACE, next_batch, rate_of
from herder.controllers.planner.distributions.interface import ClusterInputs, MachineInputs
from herder.controllers.planner.distributions.lookup import distribution_of
from herder.controllers.planner.drain import controller, pods
from herder.controllers.planner.plan import machine_inputs, render
from herder.controllers.planner.rollout import join
from herder.controllers.planner.rollout.machines import Roles
from herder.controllers.provisioning.cluster import templates
from herder.controllers.provisioning.cluster.desired import Pool
from herder.engine.client.kubeconfig import KubeconfigError

NOW = datetime(2026, 1, 1, tzinfo=UTC)

HOSTILE = [
    "",
    "abc",
    "-1",
    "9" * 5000,
    "9" * 5000 + "%",
    "9" * 400 + ".5%",
    "9" * 400 + "h",
    "999999999d",
    "١٢٣",
    "²",
    "1e400",
    "2026-01-01T00:00:00",
    "2026-13-45T99:99:99Z",
    "null",
    "[]",
    "[1]",
    "[" * 100_000,
    '{"a":' * 100_000,
    '{"since": "2026-01-01T00:00:00", "failed": 1}',
    '{"since": 5}',
    '{"begun": Infinity}',
    '{"begun": NaN}',
    '{"timeout": 1e300}',
    '{"timeout": "soon", "skipWaitForDeleteTimeoutSeconds": [1]}',
    "\x00\ud7ff",
]


def _annotated(name: str, text: str) -> dict[str, Any]:
    meta = {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**meta, "annotations": {name: text}}, "spec": {}, "data": {}}


def _drain(text: str) -> None:
    options = controller._options(text) or {}
    pod = {
        "metadata": {"name": "p", "namespace": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Running"},
        "spec": {"volumes": []},
    }
    pods._is_skipped(pod, options, NOW)
    pods._timeout_message(NOW, NOW - timedelta(days=1), options, [pod])


def _remediation_batch(text: str) -> None:
    machine = {"metadata": {"name": "m", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    next_batch(rate_of(_annotated(REMEDIATION_PACE, text)), [machine], [machine], 3, NOW)


def _token(text: str) -> None:
    encoded = base64.b64encode(text.encode(errors="replace")).decode()
    data = dict.fromkeys(("ttl", "principal", "last-used-at", "enabled"), encoded)
    secret = {"metadata": {"name": "t", "creationTimestamp": "2026-01-01T00:00:00Z"}, "data": data}
    _ = from_secret(secret).expires


def _base64(text: str) -> str:
    return base64.b64encode(text.encode(errors="replace")).decode()


def _suppressing(*errors: type[Exception]) -> Callable[[Callable[[], Any]], None]:
    def check(read: Callable[[], Any]) -> None:
        with suppress(*errors):  # these are caught and reported in a condition
            read()

    return check


READERS: dict[str, Callable[[str], Any]] = {
    "revision": lambda text: revision_of(_annotated(REVISION, text)),
    "pace": _remediation_batch,
    "drain options": _drain,
    "port of a join URL": lambda text: join.port_of(f"https://a:{text}"),
    "etcd members": join._members,
    "host name limit": lambda text: hostname("machine", text),
    "driver flags": schemas.parse_flags,
    "driver record": lambda text: (state.driver_config(_base64(text)), state.recorded({"data": {}})),
    "driver of a machine": lambda text: machine_inputs._Driver.of({"Driver": text, "DriverName": [text]}),
    "token": _token,
    "kubelet version": version_numbers,
    "number": parse_int64,
    "duration": whole_seconds,
    "behavior": lambda text: behavior_of(_annotated(NODE_CONDITIONS, text)),
    "setting": lambda text: _suppressing(ValueError)(lambda: NOW + timedelta(seconds=settings.parse_duration(text))),
    "packed spec": lambda text: _suppressing(ValueError)(lambda: cluster_spec.decode_spec(_base64(text))),
    "concurrency": lambda text: _suppressing(strategy.BadConcurrency)(lambda: strategy.limit_of(text, 3)),
    "percentage": lambda text: _suppressing(ValueError)(lambda: scaled(text, 3, round_up=True)),
    "labels of a node": lambda text: _suppressing(ConfigError)(
        lambda: machine_inputs._json({"mark": text}, "mark", dict[str, str])
    ),
    "kubeconfig": lambda text: _suppressing(KubeconfigError)(
        lambda: workload_clusters._kubeconfig({"data": {"value": _base64(text)}})
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_hostile_values_do_not_raise(reader: str) -> None:
    for text in HOSTILE:
        try:
            READERS[reader](text)
        except Exception as error:
            error.add_note(f"value {text[:60]!r}")
            raise


@pytest.mark.parametrize("seconds", [10**15, 1e300, float("inf"), float("nan"), -5, "soon", None, True])
def test_any_duration_can_be_added_to_a_time(seconds: object) -> None:
    assert NOW <= NOW + duration(seconds) <= NOW + MAX_DURATION


def test_registration_token_lifetime_is_bounded() -> None:
    lifetime = Lifetime.of({"ttl": 10**18, "gracePeriod": 10**18}, "60", "10")
    assert NOW + lifetime.ttl > NOW + lifetime.grace


# --- caches ----------------------------------------------------------------------------------------------------------


def test_plan_rendering_keeps_nothing_of_a_deleted_cluster() -> None:
    """Its inputs hold the join tokens of machines and the keys of its certificate authorities."""
    cluster = ClusterInputs("fleet-default", "gone", "", "v1.33.4+k3s1", {}, server_token="hunter2")
    machine = MachineInputs(name="m", uid="u", roles=Roles(True, True, True), is_init=True)
    request = render.Request.of(distribution_of("v1.33.4+k3s1"), cluster, machine)
    first = render._checksums_of(request)
    assert render._checksums_of(request) == first
    reference = weakref.ref(cluster)
    del request, cluster
    gc.collect()
    assert reference() is None
    assert "hunter2" not in repr(render._checksums._results)


def test_machine_records_are_not_cached() -> None:
    record = base64.b64encode(b"hunter2, an SSH key").decode()
    assert machine_inputs._read_driver(record) is None
    assert record not in repr(list(machine_inputs._drivers._results))
    assert hashlib.sha256(record.encode()).digest() in machine_inputs._drivers._results


def test_agent_tokens_are_not_cached_with_their_manifest() -> None:
    secret = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}, "stringData": {"token": "hunter2"}}
    account = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "a"}}
    as_yaml([account])
    cached = manifest._cached_dump.cache_info().currsize
    assert as_yaml([account, secret]).count("---\n") == 2
    assert manifest._cached_dump.cache_info().currsize == cached


def test_unused_kubeconfigs_are_evicted_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(workload_clusters.time, "monotonic", lambda: now)
    monkeypatch.setattr(workload_clusters, "parse_untrusted", lambda text: text)
    monkeypatch.setattr(workload_clusters, "_recent", {})
    workload_clusters._parsed("gone")
    now += workload_clusters.CACHE_SECONDS + 1
    workload_clusters._parsed("used")
    assert [connection for _, connection in workload_clusters._recent.values()] == ["used"]


@pytest.mark.parametrize("schema_json", ["", "[", "[]", "1", '{"resourceFields": 1}', '{"resourceFields": [["a"]]}'])
def test_unreadable_schema_of_a_pool_counts_as_missing(schema_json: str) -> None:
    """They are then filled in again."""
    assert templates.schema_fields(Pool({}, {"dynamicSchemaSpec": schema_json}, 0)) is None
