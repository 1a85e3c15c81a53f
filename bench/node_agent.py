"""herder-agent compared with rancher-system-agent on one server: latency of a plan, and memory."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from herder.engine.client import kubeconfig
from tests.support.api import Api
from tests.support.embedded import Embedded
from tests.support.manager.node_agents import GO, OURS, NodeAgent, decoded, encoded, plan_secret

ROUNDS = 60
REST_SECONDS = 0.25  # the Go agent exits if a plan arrives while it still reports the previous one


def run(directory: Path) -> str:
    with _realtime_priority(), Embedded(directory / "server") as server:
        return asyncio.run(_measure(server, directory))


@contextmanager
def _realtime_priority() -> Iterator[None]:
    """Run with real-time priority, so that other load does not distort milliseconds. Server and agents inherit it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        print("not root: other processes on this machine distort the results")
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


async def _measure(server: Embedded, directory: Path) -> str:
    api = Api(kubeconfig.load(server.kubeconfig))
    agents = {}
    for program in (OURS, GO):
        await api.create("secrets", plan_secret(program, {}))
        agent = NodeAgent(directory / program, server.kubeconfig.read_text(), "default", program, program)
        agent.environment = {"CATTLE_LOGLEVEL": "info"}
        agents[program] = agent.start()
    try:
        durations: dict[str, list[float]] = {program: [] for program in agents}
        for number in range(ROUNDS):
            for program in agents:
                durations[program].append(await _apply_plan(api, program, number))
                await asyncio.sleep(REST_SECONDS)
        memory = {program: agent.resident() for program, agent in agents.items()}
    finally:
        for agent in agents.values():
            agent.kill()
        await api.close()
    return _report(durations, memory)


async def _apply_plan(api: Api, secret: str, number: int) -> float:
    """Return the seconds from writing a plan until its success is observed."""
    plan = {"instructions": [{"name": "it", "command": "true", "env": [f"ROUND={number}"]}]}
    url = api.at("secrets", secret)
    revision = str(number + 1).encode()
    applied = asyncio.create_task(
        api.until_object(
            url,
            lambda found: (
                decoded(found).get("plan-state") == b"succeeded" and decoded(found).get("plan-revision") == revision
            ),
        )
    )
    await asyncio.sleep(REST_SECONDS)
    began = time.monotonic()
    change = {"data": encoded({"plan": json.dumps(plan), "plan-state": "pending"})}
    (await api.patch(url, change)).expect(200)
    await applied
    return time.monotonic() - began


def _report(durations: dict[str, list[float]], memory: dict[str, int]) -> str:
    ours, go = (statistics.median(durations[program]) for program in (OURS, GO))
    lines = [
        f"A plan of one command, {ROUNDS} times on each agent in turns, on the embedded server over TLS, with",
        f"real-time priority; {os.cpu_count()} cores. herder-agent writes every result to disk before it is reported.",
        "",
        "| | herder-agent | rancher-system-agent v0.15.0 | ratio | goal |",
        "|---|---|---|---|---|",
        f"| plan written until applied and reported, median | {ours * 1000:.1f} ms | {go * 1000:.1f} ms "
        f"| {ours / go:.2f} | ≤ 1 |",
        "| … 90th percentile | "
        + " | ".join(f"{_p90(durations[program]) * 1000:.1f} ms" for program in (OURS, GO))
        + " | | |",
        f"| resident memory | {memory[OURS] / 1e6:.1f} MB | {memory[GO] / 1e6:.1f} MB "
        f"| {memory[OURS] / memory[GO]:.2f} | ≤ 0.5 |",
    ]
    return "\n".join(lines) + "\n"


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]
