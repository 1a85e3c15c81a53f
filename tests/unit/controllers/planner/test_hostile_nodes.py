"""Nodes may report anything in their plan Secret: no reconcile fails, and other machines get their plans."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from typing import Any

import pytest

from herder.api.rke import names
from herder.api.rke.kinds import PLAN_SECRET
from herder.api.rke.node.plan_secret import PlanSecret, encoded
from herder.engine.meta.kinds import Object
from herder.sim import loop
from tests.unit.controllers.planner.simulated_cluster import NAMESPACE, SERVER_ROLES, WORKER_ROLES, SimulatedCluster

DIGITS = "9" * 5000
DEEP = "[" * 100_000
NOT_TEXT = b'{"a\xff\xfe":{}}'
SPARSE = zlib.compress(b"")  # not gzip


def bomb(prefix: bytes, filler: bytes, size: int) -> bytes:
    return gzip.compress(prefix + filler * (size // len(filler)))


NUMBERS = ("failure-count", "success-count", "failure-threshold", "max-failures", "plan-revision")
ODD_NUMBERS = (DIGITS, f"-{DIGITS}", "²", "१२", "1_000", "1e9", "0x10", " 7 ", "NaN", "-", "")
JSONS = ("probe-statuses", "failed-evidence", "probe-errors")
ZIPPED = ("applied-output", "failed-output", "applied-periodic-output")
ODD_JSON: tuple[bytes, ...] = (
    *(each.encode() for each in (DEEP, '{"a":' * 100_000, DIGITS, f'{{"a":{{"failureCount":{DIGITS}}}}}', "[]", "{")),
    *(
        each.encode()
        for each in (f'{{"exitCode":{2**4000}}}', '{"a":{"healthy":"yes"}}', '{"a":null}', '"\\ud800"', "")
    ),
    b'{"x":' + DEEP.encode() + b"]" * 100_000 + b"}",
    NOT_TEXT,
    b"\xff\xfe\x00",
    json.dumps({"error": "e" * 200_000, "instruction": "i" * 100_000, "tail": "\x1b[2J\x00" * 10_000}).encode(),
    json.dumps({f"probe-{number}": {} for number in range(20_000)}).encode(),
    json.dumps({f"probe-{number}": "x" * 20 for number in range(20_000)}).encode(),
    json.dumps({"capture-address": {"name": "n" * 9, "exitCode": 2**200, "failures": 2**200}}).encode(),
)
CASES: dict[str, dict[str, str]] = {
    **{f"{key} {value[:8]!r}": {key: encoded(value)} for key in NUMBERS for value in ODD_NUMBERS},
    **{f"{key} {number}": {key: encoded(value)} for key in JSONS for number, value in enumerate(ODD_JSON)},
    **{
        f"{key} {number}": {key: encoded(gzip.compress(value))}
        for key in ZIPPED
        for number, value in enumerate(ODD_JSON)
    },
    **{f"{key} of another format": {key: encoded(SPARSE)} for key in ZIPPED},
    **{f"{key} cut short": {key: encoded(gzip.compress(b"{}")[:-9])} for key in ZIPPED},
    **{f"{key} that grows": {key: encoded(bomb(b'{"a":"', b"A", 64 << 20))} for key in ZIPPED},
    **{
        f"failed, {key} {number}": {"plan-state": encoded("failed"), key: encoded(pack(value))}
        for key, pack in (("failed-evidence", bytes), ("failed-output", gzip.compress))
        for number, value in enumerate(ODD_JSON)
    },
    "an unknown state": {"plan-state": encoded("\x00" * 1000)},
    "invalid checksums": {"applied-checksum": encoded(DIGITS), "failed-checksum": encoded(b"\xff")},
    "an invalid time": {"last-apply-time": encoded("Sun Nov 99 25:61:61 UTC 99999999")},
    "failed, of the current plan": {"plan-state": encoded("failed")},
    "unknown keys": {f"key-{number}": "" for number in range(2000)},
}


class Failures(logging.Handler):
    """Collects reconciles that ended with an exception."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        self.found.append(f"{record.getMessage()} {fields} {record.exc_info[1] if record.exc_info else ''}"[:300])


async def report(cluster: SimulatedCluster, machine: str, data: dict[str, str]) -> None:
    """Report as an agent does: replace everything that was reported before."""
    name = names.plan_secret(machine)
    sound = {"plan-state": encoded("succeeded"), "applied-checksum": encoded((await cluster.plan(machine)).checksum)}
    cleared = dict.fromkeys({key for case in CASES.values() for key in case} - {"plan"}, None)
    await cluster.client.patch(PLAN_SECRET.resource, name, {"data": {**cleared, **sound, **data}}, namespace=NAMESPACE)


async def report_hostile_values() -> list[str]:
    failures = Failures()
    logging.getLogger("herder").addHandler(failures)
    try:
        async with SimulatedCluster() as cluster:
            await cluster.create()
            await cluster.add("server", SERVER_ROLES)
            await cluster.add("worker", WORKER_ROLES)
            await cluster.world.until(cluster.is_ready)
            for name, data in CASES.items():
                await report(cluster, "worker", data)
                await asyncio.sleep(2)
                failures.found = [each if each.startswith("[") else f"[{name}] {each}" for each in failures.found]
            await report(cluster, "worker", CASES["failure-count '99999999'"])
            await cluster.edit(kubernetesVersion="v1.34.1+k3s1")
            await cluster.world.until(lambda: _is_upgraded(cluster))
    finally:
        logging.getLogger("herder").removeHandler(failures)
    return failures.found


async def _is_upgraded(cluster: SimulatedCluster) -> bool:
    plan = await cluster.plan("server")
    return plan.is_done and plan.plan is not None and "v1.34.1" in plan.plan.instructions[0].image


def test_no_node_report_fails_a_reconcile_of_the_planner() -> None:
    assert loop.run(report_hostile_values()) == []


@pytest.mark.parametrize("case", CASES)
def test_every_node_report_can_be_parsed(case: str) -> None:
    secret: Object = {"metadata": {"name": "n"}, "data": {"plan": encoded("{}"), **CASES[case]}}
    plan = PlanSecret(secret)
    for name, part in vars(PlanSecret).items():
        if not name.startswith("_") and not callable(part):
            getattr(plan, name)
    assert len(str(plan.evidence)) < 20_000
    assert all(abs(plan.number(key)) < 2**63 for key in NUMBERS)


def test_unreadable_probe_statuses_do_not_count_as_healthy() -> None:
    for value in (DEEP, "[]", '{"a":', NOT_TEXT):
        assert not PlanSecret({"metadata": {"name": "n"}, "data": {"probe-statuses": encoded(value)}}).healthy
    assert PlanSecret({"metadata": {"name": "n"}, "data": {}}).healthy


MANY_OBJECTS = b",".join([b"{}"] * 50_000)
MANY_TEXTS = b",".join([b'""'] * 100_000)
MANY_KEYS = b",".join(b'"%d":{}' % number for number in range(22_000))


@pytest.mark.parametrize(
    "plan",
    [
        b'{"files":[' + MANY_OBJECTS + b"]}",
        b'{"instructions":[' + MANY_OBJECTS + b"]}",
        b'{"instructions":[{"args":[' + MANY_TEXTS + b"]}]}",
        b'{"probes":{' + MANY_KEYS + b"}}",
    ],
)
def test_a_plan_with_many_values_is_not_decoded(plan: bytes) -> None:
    """Editors of the namespace can write plans. Decoding takes as long as there are values, on the event loop."""
    json.loads(plan)
    assert PlanSecret({"metadata": {"name": "n"}, "data": {"plan": encoded(plan)}}).plan is None


def test_many_probe_statuses_are_not_decoded() -> None:
    secret = {"metadata": {"name": "n"}, "data": {"probe-statuses": encoded(b"{" + MANY_KEYS + b"}")}}
    assert PlanSecret(secret).unhealthy_probes == ["probe-statuses"]


def test_a_plan_with_thousands_of_files_is_decoded() -> None:
    files = [{"path": f"/etc/{number}", "content": "YQ==", "permissions": "0600"} for number in range(6_000)]
    found = PlanSecret({"metadata": {"name": "n"}, "data": {"plan": encoded(json.dumps({"files": files}))}}).plan
    assert found is not None
    assert len(found.files) == len(files)


# --- a full plan Secret ---------------------------------------------------------------------------------------------


async def fill_plan_secret(key: str) -> tuple[bool, list[str]]:
    """Return whether all machines are upgraded, and the reconciles that failed."""
    failures = Failures()
    logging.getLogger("herder").addHandler(failures)
    try:
        async with SimulatedCluster() as cluster:
            await cluster.create()
            await cluster.add("server", SERVER_ROLES)
            for name in ("a-full", "worker"):
                await cluster.add(name, WORKER_ROLES)
            await cluster.world.until(cluster.is_ready)
            name = names.plan_secret("a-full")
            secret = await cluster.client.get(PLAN_SECRET.resource, name, namespace=NAMESPACE)
            used = sum(len(PlanSecret(secret).raw(each)) for each in secret["data"])
            filled = {"data": {key: encoded(b"x" * ((1 << 20) - used))}}
            await cluster.client.patch(PLAN_SECRET.resource, name, filled, namespace=NAMESPACE)
            larger = {"kubelet-arg": ["root-dir=/" + "y" * 20_000]}
            await cluster.edit(kubernetesVersion="v1.34.1+k3s1", machineGlobalConfig=larger)
            await cluster.world.until(lambda: _is_upgraded(cluster))
            await asyncio.sleep(600)
            upgraded = [(await cluster.plan(machine)).plan for machine in ("server", "a-full", "worker")]
            done = all(plan is not None and "v1.34.1" in plan.instructions[0].image for plan in upgraded)
            return done and await cluster.is_ready(), failures.found
    finally:
        logging.getLogger("herder").removeHandler(failures)


@pytest.mark.parametrize("key", ["mine", "applied-output", "probe-errors"])
def test_a_node_that_fills_its_secret_does_not_stall_the_planner(key: str) -> None:
    """The API server would reject the new plan for its size, and with it the other writes of the planner."""
    assert loop.run(fill_plan_secret(key)) == (True, [])


# --- a false kubelet version -----------------------------------------------------------------------------------------


NEWER_PLAN = {"local_plan_revision": "9999", "local_applied_checksum": "abc"}


async def report_false_version(version: str, report: dict[str, str]) -> tuple[bool, str]:
    """Return whether the other workers get their plans, and the message about the one that reports a false kubelet."""
    async with SimulatedCluster() as cluster:
        await cluster.create()
        await cluster.add("server", SERVER_ROLES)
        for name in ("a-liar", "worker"):
            await cluster.add(name, WORKER_ROLES)
        await cluster.world.until(cluster.is_ready)
        await cluster.report_kubelet("a-liar", version)
        await cluster.report("a-liar", **report)
        await cluster.add("new", WORKER_ROLES)
        await cluster.edit(kubernetesVersion="v1.34.1+k3s1")
        await asyncio.sleep(1800)
        plans = [(await cluster.plan(machine)).plan for machine in ("worker", "new")]
        done = all(plan is not None and "v1.34.1" in plan.instructions[0].image for plan in plans)
        return done, await cluster.message()


@pytest.mark.parametrize(
    ("version", "report", "reason"),
    [
        ("v1.20.0+k3s1", {}, "skips minor versions after v1.20.0"),
        ("v1.99.0+k3s1", {}, "v1.34.1 is lower than the current v1.99.0"),
        ("none", NEWER_PLAN, "the machine has applied a newer plan"),
    ],
    ids=["old", "new", "none"],
)
def test_a_node_that_reports_a_false_version_does_not_block_other_plans(
    version: str, report: dict[str, str], reason: str
) -> None:
    done, message = loop.run(report_false_version(version, report))
    assert done, message
    assert "a-liar" in message
    assert reason in message
