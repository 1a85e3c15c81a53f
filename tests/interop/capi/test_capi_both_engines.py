"""One scenario on the embedded server and on kube-apiserver: every object reaches the same status at every step, and
the same programs print the same.

Annotations of the in-memory provider hold machines at each phase and release them step by step, so that no step depends
on timing.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, MACHINE_SET, SECRET
from herder.api.capi.names import DEPLOYMENT_NAME
from herder.api.inmemory import names
from herder.api.inmemory.kinds import IN_MEMORY_BOOTSTRAP, IN_MEMORY_MACHINE, IN_MEMORY_MACHINE_TEMPLATE
from herder.api.inmemory.manifest import in_memory_cluster, new_object, reference
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.interop.programs import run
from tests.support.capi import (
    CORE_KINDS,
    EVENT,
    PROVIDER_KINDS,
    TEMPLATE_KINDS,
    TIMEOUT,
    HerderRun,
    all_running,
    condition_status,
    create_objects,
    ensure_namespace,
    none_left,
    phase,
    wait_for_admission,
    wait_until,
    wait_until_served,
    webhook_flags,
)
from tests.support.checks.comparison import Names, Observer, Snapshot, agreement, normalized, observed
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube

NAMESPACE, NAME, WORKERS = "pasture", "merino", "merino-workers"
WATCHED = (*CORE_KINDS, *PROVIDER_KINDS)

DESCRIBED = ("clusters", "machinedeployments", "machinesets", "machines")
"""Resources whose Events are compared."""

HELD = {names.NEVER_READY: "true", names.NODE_READY: "Absent"}
"""Annotations of new machines and bootstrap configs: each stays in its phase until the scenario removes them."""

GATES = (
    ("Pending", IN_MEMORY_BOOTSTRAP, names.NEVER_READY),
    ("Provisioning", IN_MEMORY_MACHINE, names.NEVER_READY),
    ("Provisioned", IN_MEMORY_MACHINE, names.NODE_READY),
)
"""The phases in which a Machine is held, each with the object and annotation that hold it."""


@dataclass
class Side:
    """One engine with Herder on it, and what was collected there."""

    engine: Engine
    client: Client
    observer: Observer
    log: Callable[[], str]
    home: Path
    final: list[Object] = field(default_factory=list)  # every object, before the cluster is deleted
    secrets: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)  # output by command

    async def machines(self, wanted: Callable[[list[Object]], bool]) -> list[Object]:
        return await wait_until(self.client, MACHINE, NAMESPACE, wanted)

    async def listed(self, kind: Kind) -> list[Object]:
        return (await self.client.list_all(kind.resource, namespace=NAMESPACE)).items

    async def annotate(self, kind: Kind, name: str, annotation: str, value: str | None) -> None:
        change = {"metadata": {"annotations": {annotation: value}}}
        await self.client.patch(kind.resource, name, change, namespace=NAMESPACE)

    async def annotate_all(self, kind: Kind, annotation: str, value: str | None) -> None:
        for obj in await self.listed(kind):
            if (obj["metadata"].get("annotations") or {}).get(annotation) != value:
                await self.annotate(kind, name_of(obj), annotation, value)

    async def change_deployment(self, spec: Any) -> None:
        await self.client.patch(MACHINE_DEPLOYMENT.resource, WORKERS, {"spec": spec}, namespace=NAMESPACE)


class Scenario:
    """Takes both sides through the same steps. After each, both must agree on the status of every object."""

    def __init__(self, *sides: Side) -> None:
        self.sides = sides
        self.agreed: dict[str, Snapshot] = {}

    async def run(self) -> None:
        await self.create()
        await self.scale()
        await self.roll_out()
        await self.remediate()
        await self.each(_inspect)
        await self.delete()

    async def each(self, step: Callable[[Side], Any]) -> None:
        await asyncio.gather(*(step(side) for side in self.sides))

    async def agree(self, title: str) -> None:
        one, other = self.sides
        self.agreed[title] = await agreement(one.observer, other.observer, seconds=TIMEOUT)

    async def release_step_by_step(self, title: str, total: int, held: int, first: int = 0) -> None:
        """`held` of `total` Machines wait at the gate number `first`; the others run."""
        for wanted, kind, annotation in GATES[first:]:
            await self.each(lambda side, wanted=wanted: side.machines(in_phase(wanted, held, total)))  # type: ignore[misc]
            await self.agree(f"{title}: {wanted}")
            await self.each(lambda side, kind=kind, gate=annotation: side.annotate_all(kind, gate, None))  # type: ignore[misc]
        await self.running(title, total)

    async def running(self, title: str, total: int) -> None:
        await self.each(lambda side: side.machines(all_running(total)))
        await self.agree(f"{title}: Running")

    async def create(self) -> None:
        *others, workers = in_memory_cluster(
            NAME, machine_annotations=HELD, deployment={"deletion": {"order": "Oldest"}}
        )
        check = {
            "clusterName": NAME,
            "selector": {"matchLabels": {DEPLOYMENT_NAME: WORKERS}},
            "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "False", "timeoutSeconds": 2}]},
        }
        await self.each(lambda side: create_objects(side.client, NAMESPACE, others))
        await self.release_step_by_step("control plane", 1, 1, first=1)  # its bootstrap config has no template
        pool = [workers, new_object(MACHINE_HEALTH_CHECK, f"{NAME}-health", check)]
        await self.each(lambda side: create_objects(side.client, NAMESPACE, pool))
        await self.release_step_by_step("workers", 3, 2)

    async def scale(self) -> None:
        await self.each(lambda side: side.change_deployment({"replicas": 3}))
        await self.release_step_by_step("one more worker", 4, 1)

    async def roll_out(self) -> None:
        template = {"template": {"metadata": {"annotations": HELD}, "spec": {}}}
        renamed = {"infrastructureRef": reference(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-new")}
        new = [new_object(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-new", template)]
        await self.each(lambda side: create_objects(side.client, NAMESPACE, new))
        await self.each(lambda side: side.change_deployment({"template": {"spec": renamed}}))
        await self.each(lambda side: side.machines(in_phase("Pending", 1, 5)))
        await self.agree("rollout: one new Machine is Pending, the old ones run")
        await self.each(_release_until_rolled_out)
        await self.running("rollout", 4)

    async def remediate(self) -> None:
        """The Machine of a failed Node is replaced; its deletion is held so that it can be compared."""
        await self.each(_all_checked)
        await self.each(_fail_one_node)
        await self.each(lambda side: side.machines(in_phase("Deleting", 1, 4)))
        await self.agree("remediation: one Machine is Deleting")
        await self.each(lambda side: side.annotate_all(IN_MEMORY_MACHINE, names.STUCK_DELETION, None))
        await self.release_step_by_step("remediation", 4, 1)
        await self.each(_all_checked)

    async def delete(self) -> None:
        await self.each(lambda side: side.annotate_all(IN_MEMORY_MACHINE, names.STUCK_DELETION, "true"))
        await self.each(lambda side: side.client.delete(CLUSTER.resource, NAME, namespace=NAMESPACE))
        await self.each(lambda side: side.machines(in_phase("Deleting", 3, 4)))
        await self.agree("deletion: three workers are Deleting")
        await self.each(_finish_deletion)


def in_phase(wanted: str, held: int, total: int) -> Callable[[list[Object]], bool]:
    def holds(machines: list[Object]) -> bool:
        return len(machines) == total and sum(phase(machine) == wanted for machine in machines) == held

    return holds


async def _release_until_rolled_out(side: Side) -> None:
    """Release new Machines, which appear one by one, each of them held."""
    while len(await side.listed(MACHINE_SET)) != 1 or not all_running(4)(await side.listed(MACHINE)):
        await side.annotate_all(IN_MEMORY_BOOTSTRAP, names.NEVER_READY, None)
        for gate in HELD:
            await side.annotate_all(IN_MEMORY_MACHINE, gate, None)
        await asyncio.sleep(0.2)


async def _all_checked(side: Side) -> None:
    """Wait until every worker was found healthy."""
    await side.machines(
        lambda found: sum(condition_status(each, "HealthCheckSucceeded") == "True" for each in found) == 3
    )


async def _fail_one_node(side: Side) -> None:
    machines = await side.listed(MACHINE)
    failed = next(name_of(machine) for machine in machines if condition_status(machine, "HealthCheckSucceeded"))
    await side.annotate(IN_MEMORY_MACHINE, failed, names.STUCK_DELETION, "true")
    await side.annotate(IN_MEMORY_MACHINE, failed, names.NODE_READY, "False")


async def _inspect(side: Side) -> None:
    side.secrets = await side.listed(SECRET)
    for kind in (*WATCHED, *TEMPLATE_KINDS):
        side.final += await side.listed(kind)
    side.outputs = await asyncio.to_thread(collect_outputs, side.engine, side.home)


async def _finish_deletion(side: Side) -> None:
    await side.annotate_all(IN_MEMORY_MACHINE, names.STUCK_DELETION, None)
    for kind in WATCHED:
        await wait_until(side.client, kind, NAMESPACE, none_left)
    side.events = await side.listed(EVENT)


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def collect_outputs(engine: Engine, home: Path) -> dict[str, str]:
    """The output of commands that users would run."""
    tree = run(engine, "clusterctl", "describe", "cluster", NAME, "-n", NAMESPACE, "--show-machinesets", home=home)
    kubeconfig = run(engine, "clusterctl", "get", "kubeconfig", NAME, "-n", NAMESPACE, home=home)
    (home / "workload").write_text(kubeconfig.stdout)
    workload = Engine(engine.name, home / "workload")
    description = subprocess.run(
        [HERDER, "describe", "cluster", NAME, "-n", NAMESPACE, "--kubeconfig", engine.kubeconfig],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {
        "clusterctl describe cluster": tree.stdout,
        "clusterctl get kubeconfig": kubeconfig.stdout,
        "kubectl get nodes": workload.kubectl("get", "nodes").stdout,
        "herder describe cluster": description.stdout,
        **{f"kubectl describe {what}": described(engine, what) for what in DESCRIBED},
    }


def described(engine: Engine, what: str) -> str:
    """The Events that kubectl shows for the objects of one resource."""
    shown = engine.kubectl("describe", what, "-n", NAMESPACE, "--show-events").stdout
    return "\n".join(part.partition("Events:")[2] for part in shown.split("\n\n\n"))


# --- both engines -------------------------------------------------------------------------------------------


Started = AbstractContextManager[tuple[Engine, Callable[[], str]]]
"""An engine with Herder on it, and a function that returns Herder's log."""


@contextmanager
def embedded(directory: Path) -> Iterator[tuple[Engine, Callable[[], str]]]:
    with Embedded(directory, flags=("--capi-core=own", "--no-machines", "--in-memory")) as server:
        yield Engine("embedded", server.kubeconfig), server.log


@contextmanager
def real(directory: Path) -> Iterator[tuple[Engine, Callable[[], str]]]:
    (directory / "kube").mkdir()
    with RealKube(directory / "kube", controller_manager=True, controllers=CONTROLLERS) as kube:
        engine = Engine("real", kube.kubeconfig)
        with HerderRun(
            engine, directory / "herder", "--capi-core=own", "--no-machines", "--in-memory", *webhook_flags()
        ) as manager:
            yield engine, manager.log


@asynccontextmanager
async def side(start: Callable[[Path], Started], directory: Path) -> AsyncIterator[Side]:
    (directory / "home").mkdir(parents=True)
    with start(directory) as (engine, log):
        client = engine.client()
        try:
            await wait_until_served(client, *WATCHED)
            await wait_for_admission(client)
            await ensure_namespace(client, NAMESPACE)
            async with observed(client, NAMESPACE, NAME, WATCHED) as observer:
                yield Side(engine, client, observer, log, directory / "home")
        finally:
            await client.close()


@pytest.fixture(scope="module")
async def scenario(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scenario]:
    """The completed scenario; the engines keep running, for their logs."""
    directory = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
        async with side(embedded, directory / "e") as ours, side(real, directory / "r") as theirs:
            scenario = Scenario(ours, theirs)
            await scenario.run()
            yield scenario


# --- checks -----------------------------------------------------------------------------------------------------------


def test_both_agree_at_every_step(scenario: Scenario) -> None:
    """The scenario itself waits for agreement; here, its steps are checked to match their titles."""
    assert len(scenario.agreed) == 3 + 3 * 4 + 2 + 1 + 1
    for title, snapshot in scenario.agreed.items():
        wanted = title.rpartition(": ")[2]
        if wanted in ("Pending", "Provisioning", "Provisioned", "Running"):
            workers = "\n".join(
                text for role, texts in snapshot.items() if role.startswith("Machine <") for text in texts
            )
            assert f"phase: {wanted}" in workers, title
    deleting = scenario.agreed["deletion: three workers are Deleting"]
    assert any(
        "Deleting: True | Deleting | Deleting 3 Machines" in text for text in deleting[f"MachineDeployment {WORKERS}"]
    )
    failed = scenario.agreed["remediation: one Machine is Deleting"]
    assert any("HealthCheckSucceeded: False" in text for text in failed["Machine <machine of <set 2>>"])


def test_all_stored_objects_are_equal(scenario: Scenario) -> None:
    ours, theirs = (sorted(normalized(side.observer.names, obj) for obj in side.final) for side in scenario.sides)
    assert len(ours) > 20
    different = [
        "\n".join(difflib.unified_diff(pretty(one), pretty(other), "embedded", "real", n=1, lineterm=""))
        for one, other in zip(ours, theirs, strict=True)
        if one != other
    ]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("command", ["clusterctl describe cluster", "herder describe cluster", "kubectl get nodes"])
def test_programs_print_the_same(scenario: Scenario, command: str) -> None:
    ours, theirs = (table(side.observer.names, side.outputs[command]) for side in scenario.sides)
    assert ours == theirs


EXPECTED_EVENTS = {
    "clusters": {"Provisioning", "Provisioned", "InfrastructureReady", "ControlPlaneInitialized"},
    "machinedeployments": {"SuccessfulCreate", "SuccessfulScale", "SuccessfulDelete"},
    "machinesets": {"SuccessfulCreate", "SuccessfulDelete"},
    "machines": {"SuccessfulSetNodeRef"},
}


@pytest.mark.parametrize("what", DESCRIBED)
def test_kubectl_describe_shows_the_same_events(scenario: Scenario, what: str) -> None:
    ours, theirs = (shown_events(side.outputs[f"kubectl describe {what}"]) for side in scenario.sides)
    assert ours == theirs
    assert ours >= {("Normal", reason) for reason in EXPECTED_EVENTS[what]}


def test_events_are_those_that_users_look_for(scenario: Scenario) -> None:
    for side in scenario.sides:
        deployment = side.outputs["kubectl describe machinedeployments"]
        assert re.search(rf"Created MachineSet {NAMESPACE}/{WORKERS}-\S+ with \d+ replicas", deployment), deployment
        assert re.search(rf"Scaled up MachineSet {WORKERS}-\S+: \d+ -> \d+", deployment), deployment
        assert re.search(rf'Created Machine "{WORKERS}-\S+"', side.outputs["kubectl describe machinesets"])
        assert any(event["reason"] == "MachineMarkedUnhealthy" for event in side.events), "about a deleted Machine"
        assert all(event["count"] == 1 for event in side.events if event["reason"] == "SuccessfulSetNodeRef")


def test_the_kubeconfig_from_clusterctl_works(scenario: Scenario) -> None:
    for side in scenario.sides:
        nodes = table(side.observer.names, side.outputs["kubectl get nodes"])
        assert len([line for line in nodes if " Ready " in line]) == 4, nodes


def test_no_secret_is_in_objects_events_or_logs(scenario: Scenario) -> None:
    for side in scenario.sides:
        secrets = set(secrets_in(side))
        assert len(secrets) > 10
        texts = [json.dumps(obj) for obj in (*side.observer.seen, *side.events)] + [side.log()]
        assert not [secret[:20] for secret in secrets if any(secret in text for text in texts)]


# --- normalization ----------------------------------------------------------------------------------------------------


def table(roles: Names, printed: str) -> list[str]:
    """Rows without widths and ages, sorted: their order depends on random names."""
    lines = [re.sub(r"\b\d+[smhd](\d+s)?\b", "<age>", roles.masked(line)) for line in printed.splitlines()]
    return sorted(" ".join(re.sub(r"[├─└│]", " ", line).split()) for line in lines)


def shown_events(printed: str) -> set[tuple[str, str]]:
    """Type and reason of each Event that kubectl describe printed."""
    return {(found[1], found[2]) for found in re.finditer(r"^\s+(Normal|Warning)\s+(\w+)", printed, re.MULTILINE)}


def secrets_in(side: Side) -> Iterator[str]:
    """Secret values as stored, and the lines of every private key."""
    for secret in side.secrets:
        for value in (secret.get("data") or {}).values():
            yield value
            yield from private_lines(base64.b64decode(value).decode())
    config = yaml.safe_load(side.outputs["clusterctl get kubeconfig"])
    for user in config["users"]:
        yield user["user"]["client-key-data"]
        yield from private_lines(base64.b64decode(user["user"]["client-key-data"]).decode())


def pretty(text: str) -> list[str]:
    return json.dumps(json.loads(text), indent=1, sort_keys=True).splitlines()


def private_lines(text: str) -> Iterator[str]:
    for key in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", text, re.DOTALL):
        yield from key.split()
