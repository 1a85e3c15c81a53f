"""Effect of one user's attacks on another user: latency of a small request and memory of the server.

The same attacks run from a separate process against the embedded server and kube-apiserver with etcd.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from bench.apiserver import Subject, servers
from herder.engine.client.client import Client
from herder.engine.client.http import HttpTransport
from herder.engine.client.kubeconfig import RestConfig, load
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupVersionResource
from tests.support.attacks import requests as attacks
from tests.support.attacks import sockets as socket_attacks
from tests.support.attacks.sockets import Target

ATTACK_SECONDS = 10.0
COMPUTATION_SECONDS = 4.0
SETTLE_SECONDS = 60.0
PROBE_SECONDS = 0.02
SERIES = 2
GOAL_P99_MS, GOAL_GROWTH_MIB, GOAL_REPEATED_MIB = 250.0, 32.0, 8.0

CONFIGMAPS = GroupVersionResource("", "v1", "configmaps")
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
BINDINGS = GroupVersionResource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
NAMESPACE = "abuse"


@dataclass
class Measured:
    """The other user's requests during one attack, and the server's memory right after it."""

    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    after: float = 0.0

    @property
    def p50(self) -> float:
        return quantiles(self.latencies, n=100)[49] if len(self.latencies) > 1 else float("nan")

    @property
    def p99(self) -> float:
        return quantiles(self.latencies, n=100)[98] if len(self.latencies) > 1 else float("nan")


@dataclass
class Result:
    """Results of one server: each attack, and memory before the first series and a minute after each series."""

    attacks: dict[str, Measured] = field(default_factory=dict)
    before: float = 0.0
    settled: list[float] = field(default_factory=list)


def run(directory: Path) -> str:
    results: dict[str, Result] = {}
    for subject in servers(directory):  # one at a time: they share two cores with the attackers and the victim
        subject.server = subject.start()
        try:
            results[subject.name] = asyncio.run(measure(subject))
        finally:
            subject.server.stop()
    return report(results)


# --- measurement ----------------------------------------------------------------------------------------------------


async def measure(subject: Subject) -> Result:
    connection = load(subject.server.kubeconfig)
    admin = Client(HttpTransport(connection))
    try:
        attacker, victim = await prepare(admin, connection)
        result = Result({"no attack": Measured()})
        await probe(victim, result.attacks["no attack"], asyncio.sleep(ATTACK_SECONDS))
        result.before = result.attacks["no attack"].after = subject.resident_mb()
        for _ in range(SERIES):
            await attack_in_turn(subject, attacker, victim, result)
            await asyncio.sleep(SETTLE_SECONDS)
            result.settled.append(subject.resident_mb())
        await victim.close()
        return result
    finally:
        await admin.close()


async def attack_in_turn(subject: Subject, attacker: Target, victim: Client, result: Result) -> None:
    """Run every attack once, in sequence. Memory that a second series adds is a leak."""
    for name in socket_attacks.CONNECTIONS:
        measured = result.attacks.setdefault(name, Measured())
        await probe(victim, measured, in_another_process(attack_by_connection, name, attacker, ATTACK_SECONDS))
        measured.after = subject.resident_mb()
    for position, each in enumerate(attacks.COMPUTATIONS):
        measured = result.attacks.setdefault(each.name, Measured())
        work = in_another_process(attack_by_computation, position, attacker, COMPUTATION_SECONDS)
        await probe(victim, measured, work)
        measured.after = subject.resident_mb()


async def probe(victim: Client, measured: Measured, while_: Awaitable[None]) -> None:
    """Send small requests until the attack is over."""
    attack = asyncio.ensure_future(while_)
    while not attack.done():
        began = time.perf_counter()
        try:
            await victim.get(CONFIGMAPS, "small", namespace=NAMESPACE)
        except StatusError:
            measured.failures += 1
        measured.latencies.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PROBE_SECONDS)
    await attack


async def prepare(admin: Client, connection: RestConfig) -> tuple[Target, Client]:
    """Create two users, the CRD for expensive computations, and 30 MB of objects to watch."""
    await admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    tokens = [await _token(admin, name) for name in ("attacker", "victim")]
    await admin.create(DEFINITIONS, attacks.definition())
    await admin.create(CONFIGMAPS, {"metadata": {"name": "small"}, "data": {"a": "b"}}, namespace=NAMESPACE)
    patched = json.loads(attacks.configmap("patched", {"a": "b"}))
    await admin.create(CONFIGMAPS, patched, namespace=NAMESPACE)
    for number in range(60):
        large = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * (512 << 10)}}
        await admin.create(CONFIGMAPS, large, namespace=NAMESPACE)
    target = Target(connection.server, tokens[0], NAMESPACE)
    victim = Client(HttpTransport(RestConfig(connection.server, ca=connection.ca, token=tokens[1])))
    return target, victim


async def _token(admin: Client, name: str) -> str:
    await admin.create(ACCOUNTS, {"metadata": {"name": name}}, namespace=NAMESPACE)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    binding = {
        "metadata": {"name": f"abuse-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [subject],
    }
    await admin.create(BINDINGS, binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
    response = await admin.create(ACCOUNTS, request, namespace=NAMESPACE, name=name, subresource="token")
    return str(response["status"]["token"])


# --- attacks, in another process, so that the attacker's interpreter does not delay the victim's measurement --------


async def in_another_process(work: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    process.start()
    await asyncio.to_thread(process.join)


def attack_by_connection(name: str, target: Target, seconds: float) -> None:
    asyncio.run(_run(socket_attacks.CONNECTIONS[name](target, seconds)))


def attack_by_computation(position: int, target: Target, seconds: float) -> None:
    asyncio.run(_run(socket_attacks.send_repeatedly(target, attacks.COMPUTATIONS[position], seconds)))


async def _run(work: Awaitable[None]) -> None:
    await work


# --- report ---------------------------------------------------------------------------------------------------------


def report(results: dict[str, Result]) -> str:
    lines = [
        "## Abuse",
        "",
        "One user attacks, another reads a small ConfigMap every 20 ms: latency in ms, memory of the server (with its",
        f"store) in MiB right after the attack. All attacks run one after the other, in {SERIES} series.",
        f"Goal: p99 below {GOAL_P99_MS:.0f} ms.",
        "",
        "| attack | server | p50 | p99 | failed | memory after | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in next(iter(results.values())).attacks:
        lines += [_row(name, server, result.attacks[name]) for server, result in results.items()]
    lines += [
        "",
        f"Memory before the first attack, and {SETTLE_SECONDS:.0f} s after each series, in MiB. Goals: within",
        f"{GOAL_GROWTH_MIB:.0f} MiB of before; a second series adds nothing (at most {GOAL_REPEATED_MIB:.0f} MiB).",
        "",
        "| server | before | " + " | ".join(f"after series {number + 1}" for number in range(SERIES)) + " | goals |",
        "|---|---|" + "---|" * SERIES + "---|",
    ]
    lines += [_memory_row(server, result) for server, result in results.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, server: str, measured: Measured) -> str:
    goal = "met" if measured.p99 < GOAL_P99_MS else "missed"
    numbers = f"{measured.p50:.1f} | {measured.p99:.1f} | {measured.failures} | {measured.after:.0f}"
    return f"| {name} | {server} | {numbers} | {goal} |"


def _memory_row(server: str, result: Result) -> str:
    within = max(result.settled) - result.before <= GOAL_GROWTH_MIB
    repeated = result.settled[-1] - result.settled[0] <= GOAL_REPEATED_MIB
    goals = f"within {'met' if within else 'missed'}, repeated {'met' if repeated else 'missed'}"
    return "| " + " | ".join([server, *(f"{each:.0f}" for each in (result.before, *result.settled)), goals]) + " |"
