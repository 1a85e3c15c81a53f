"""What one user's abuse costs another: latency of a small request and memory of the server, under each attack.

The same attacks, from a process of their own, against the embedded server and kube-apiserver with etcd in one run.
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
from herder.engine.client.kubeconfig import Connection, load
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import GroupVersionResource
from tests.support import attacks, socket_attacks
from tests.support.socket_attacks import Target

ATTACK_SECONDS = 10.0
COMPUTATION_SECONDS = 4.0
SETTLE_SECONDS = 60.0
PROBE_SECONDS = 0.02
GOAL_P99_MS, GOAL_GROWTH_MIB = 250.0, 32.0

CONFIGMAPS = GroupVersionResource("", "v1", "configmaps")
ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
NAMESPACES = GroupVersionResource("", "v1", "namespaces")
BINDINGS = GroupVersionResource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
DEFINITIONS = GroupVersionResource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
NAMESPACE = "abuse"


@dataclass
class Measured:
    """Of one attack on one server; latencies in milliseconds, memory in MiB."""

    latencies: list[float] = field(default_factory=list)
    failures: int = 0
    before: float = 0.0
    after: float = 0.0
    settled: float = 0.0
    settled_again: float = 0.0

    @property
    def p50(self) -> float:
        return quantiles(self.latencies, n=100)[49] if len(self.latencies) > 1 else float("nan")

    @property
    def p99(self) -> float:
        return quantiles(self.latencies, n=100)[98] if len(self.latencies) > 1 else float("nan")


def run(directory: Path) -> str:
    found: dict[str, dict[str, Measured]] = {}
    for subject in servers(directory):  # one after the other: two cores are shared with attackers and the victim
        subject.server = subject.start()
        try:
            found[subject.name] = asyncio.run(measure(subject))
        finally:
            subject.server.stop()
    return report(found)


# --- measuring ------------------------------------------------------------------------------------------------------


async def measure(subject: Subject) -> dict[str, Measured]:
    connection = load(subject.server.kubeconfig)
    admin = Client(HttpTransport(connection))
    try:
        attacker, victim = await prepare(admin, connection)
        idle = Measured()
        await probe(victim, idle, asyncio.sleep(ATTACK_SECONDS))
        idle.before = idle.after = idle.settled = idle.settled_again = subject.resident_mb()
        found = {"no attack": idle, "computations, one after the other": Measured()}
        for name in socket_attacks.CONNECTIONS:
            found[name] = Measured()
            seconds = ATTACK_SECONDS

            async def attack(name: str = name, seconds: float = seconds) -> None:
                await in_another_process(attack_by_connection, name, attacker, seconds)

            await twice(subject, victim, found[name], attack)
        together = found["computations, one after the other"]
        details = {each.name: Measured() for each in attacks.COMPUTATIONS}

        async def all_computations() -> None:
            for position, each in enumerate(attacks.COMPUTATIONS):
                attacking = in_another_process(attack_by_computation, position, attacker, COMPUTATION_SECONDS)
                await probe(victim, details[each.name], attacking)

        await twice(subject, victim, together, all_computations)
        await victim.close()
        return found | details
    finally:
        await admin.close()


async def twice(subject: Subject, victim: Client, measured: Measured, attack: Callable[[], Awaitable[None]]) -> None:
    """The attack, a minute of rest, and all of it again: what it adds the second time is a leak."""
    measured.before = subject.resident_mb()
    await probe(victim, measured, attack())
    measured.after = subject.resident_mb()
    await asyncio.sleep(SETTLE_SECONDS)
    measured.settled = subject.resident_mb()
    await probe(victim, measured, attack())
    await asyncio.sleep(SETTLE_SECONDS)
    measured.settled_again = subject.resident_mb()


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


async def prepare(admin: Client, connection: Connection) -> tuple[Target, Client]:
    """Two users, the kind that computations are done on, and 30 MB of objects to watch."""
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
    victim = Client(HttpTransport(Connection(connection.server, ca=connection.ca, token=tokens[1])))
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
    made = await admin.create(ACCOUNTS, request, namespace=NAMESPACE, name=name, subresource="token")
    return str(made["status"]["token"])


# --- attacking, in another process: the victim's clock must not wait for the attacker's interpreter -----------------


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


# --- reporting ------------------------------------------------------------------------------------------------------


def report(found: dict[str, dict[str, Measured]]) -> str:
    lines = [
        "## Abuse",
        "",
        "One user attacks, another reads a small ConfigMap every 20 ms. Latency in ms; memory of the server (with its",
        f"store) in MiB before, right after, {SETTLE_SECONDS:.0f} s after, and as long after the same attack again.",
        f"Goals: p99 below {GOAL_P99_MS:.0f} ms, memory within {GOAL_GROWTH_MIB:.0f} MiB of before; a repeated attack",
        "adds nothing.",
        "",
        "| attack | server | p50 | p99 | failed | before | after | settled | again | goals |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in next(iter(found.values())):
        lines += [_row(name, server, results[name]) for server, results in found.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, server: str, measured: Measured) -> str:
    whole = bool(measured.before)
    memory = [measured.before, measured.after, measured.settled, measured.settled_again]
    met = measured.p99 < GOAL_P99_MS and (
        not whole or max(measured.settled, measured.settled_again) - measured.before <= GOAL_GROWTH_MIB
    )
    cells = [
        name,
        server,
        f"{measured.p50:.1f}",
        f"{measured.p99:.1f}",
        str(measured.failures),
        *(f"{each:.0f}" if whole else "" for each in memory),
        "met" if met else "missed",
    ]
    return "| " + " | ".join(cells) + " |"
