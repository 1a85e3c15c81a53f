"""One story of a cluster on the embedded server and on a real one: the same is told of every object, and the same
programs see the same."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, MACHINE_SET, SECRET
from herder.api.capi.names import DEPLOYMENT_NAME
from herder.api.inmemory import names
from herder.api.inmemory.kinds import IN_MEMORY_MACHINE, IN_MEMORY_MACHINE_TEMPLATE
from herder.api.inmemory.manifest import in_memory_cluster, made, reference
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Kind, Object
from tests.interop.programs import run
from tests.support.capi import (
    CORE_KINDS,
    EVENT,
    PROVIDED_KINDS,
    TEMPLATE_KINDS,
    HerderRun,
    admitting,
    all_running,
    make_namespace,
    none_left,
    put_up,
    said,
    served,
    until,
    webhook_flags,
)
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube
from tests.support.recording import Names, Recording, differences, normalized, recorded

NAMESPACE, NAME, WORKERS = "pasture", "merino", "merino-workers"
WATCHED = (*CORE_KINDS, *PROVIDED_KINDS)

SLOWLY = {names.BOOTSTRAP_DELAY: "5.5", names.START_DELAY: "5", names.NODE_DELAY: "5.5"}
"""Seconds for each step of a machine: reports of progress are put off for two, and each is to be seen for longer than
what may be missed."""
APART = 2.5
"""Seconds between acts whose reports are not to meet: what happens at once may be told in one write or in two."""


@dataclass
class Told:
    """What is left of a story, to be looked at."""

    engine: Engine
    recording: Recording
    final: list[Object] = field(default_factory=list)  # as they were before the end
    secrets: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)  # by command, what it printed
    log: str = ""


# --- the story ------------------------------------------------------------------------------------------------------


class Story:
    def __init__(self, engine: Engine, client: Client, told: Told, home: Path) -> None:
        self.engine = engine
        self.client = client
        self.told = told
        self.home = home

    async def tell(self) -> None:
        await self.comes_up()
        await self.grows()
        await self.is_rolled_over()
        await self.loses_a_node()
        await self.is_looked_at()
        await self.goes()

    async def settled(self, machines: int) -> None:
        await until(self.client, MACHINE, NAMESPACE, all_running(machines))
        await self.told.recording.quiet()

    async def comes_up(self) -> None:
        *others, workers = in_memory_cluster(
            NAME,
            annotations={names.API_DELAY: "3"},
            machine_annotations=SLOWLY,
            deployment={"deletion": {"order": "Oldest"}},
        )
        check = {
            "clusterName": NAME,
            "selector": {"matchLabels": {DEPLOYMENT_NAME: WORKERS}},
            "checks": {"unhealthyNodeConditions": [{"type": "Ready", "status": "False", "timeoutSeconds": 2}]},
        }
        await put_up(self.client, NAMESPACE, others)
        await until(self.client, MACHINE, NAMESPACE, lambda machines: len(machines) == 1)
        await asyncio.sleep(APART)
        await put_up(self.client, NAMESPACE, [workers, made(MACHINE_HEALTH_CHECK, f"{NAME}-health", check)])
        await self.settled(3)

    async def grows(self) -> None:
        await self.change_deployment({"replicas": 3})
        await self.settled(4)

    async def is_rolled_over(self) -> None:
        template = {"template": {"metadata": {"annotations": SLOWLY}, "spec": {}}}
        await put_up(self.client, NAMESPACE, [made(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-new", template)])
        renamed = {"infrastructureRef": reference(IN_MEMORY_MACHINE_TEMPLATE, f"{NAME}-new")}
        await self.change_deployment({"template": {"spec": renamed}})
        await until(self.client, MACHINE_SET, NAMESPACE, lambda sets: len(sets) == 2)
        await until(self.client, MACHINE_SET, NAMESPACE, lambda sets: len(sets) == 1)
        await self.settled(4)

    async def loses_a_node(self) -> None:
        machines = await self.all_checked()
        ill = next(name_of(machine) for machine in machines if said(machine, "HealthCheckSucceeded"))
        await self.mark(ill, names.NODE_READY, "False")
        await until(self.client, MACHINE, NAMESPACE, lambda found: ill not in map(name_of, found))
        await self.settled(4)
        await self.all_checked()

    async def all_checked(self) -> list[Object]:
        """Until every worker was found healthy."""
        machines = await until(
            self.client,
            MACHINE,
            NAMESPACE,
            lambda found: sum(said(machine, "HealthCheckSucceeded") == "True" for machine in found) == 3,
        )
        await self.told.recording.quiet()
        return machines

    async def is_looked_at(self) -> None:
        self.told.secrets = await self.listed(SECRET)
        for kind in (*WATCHED, *TEMPLATE_KINDS):
            self.told.final += await self.listed(kind)
        self.told.shown = await asyncio.to_thread(shown, self.engine, self.home)

    async def goes(self) -> None:
        """The machines hold it up until it is told what it waits for."""
        for machine in await self.listed(IN_MEMORY_MACHINE):
            await self.mark(name_of(machine), names.STUCK_DELETION, "true")
        await self.client.delete(CLUSTER.resource, NAME, namespace=NAMESPACE)
        await until(
            self.client, MACHINE, NAMESPACE, lambda found: sum(said(each, "Deleting") == "True" for each in found) == 3
        )
        await self.told.recording.quiet()
        for machine in await self.listed(IN_MEMORY_MACHINE):
            await self.mark(name_of(machine), names.STUCK_DELETION, None)
        for kind in WATCHED:
            await until(self.client, kind, NAMESPACE, none_left)
        self.told.events = await self.listed(EVENT)

    async def change_deployment(self, spec: Any) -> None:
        await self.client.patch(MACHINE_DEPLOYMENT.resource, WORKERS, {"spec": spec}, namespace=NAMESPACE)

    async def mark(self, machine: str, annotation: str, value: str | None) -> None:
        marked = {"metadata": {"annotations": {annotation: value}}}
        await self.client.patch(IN_MEMORY_MACHINE.resource, machine, marked, namespace=NAMESPACE)

    async def listed(self, kind: Kind) -> list[Object]:
        return (await self.client.list_all(kind.resource, namespace=NAMESPACE)).items


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def shown(engine: Engine, home: Path) -> dict[str, str]:
    """What people would look at with."""
    described = run(engine, "clusterctl", "describe", "cluster", NAME, "-n", NAMESPACE, "--show-machinesets", home=home)
    handed = run(engine, "clusterctl", "get", "kubeconfig", NAME, "-n", NAMESPACE, home=home)
    (home / "workload").write_text(handed.stdout)
    workload = Engine(engine.name, home / "workload")
    ours = subprocess.run(
        [HERDER, "describe", "cluster", NAME, "-n", NAMESPACE, "--kubeconfig", engine.kubeconfig],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {
        "clusterctl describe cluster": described.stdout,
        "clusterctl get kubeconfig": handed.stdout,
        "kubectl get nodes": workload.kubectl("get", "nodes").stdout,
        "herder describe cluster": ours.stdout,
    }


# --- both of them at once -------------------------------------------------------------------------------------------


Started = AbstractContextManager[tuple[Engine, Callable[[], str]]]
"""An engine with all of ours on it, and what ours log."""


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
        ) as ours:
            yield engine, ours.log


async def told_on(start: Callable[[Path], Started], directory: Path) -> Told:
    directory.mkdir()
    (directory / "home").mkdir()
    with start(directory) as (engine, log):
        client = engine.client()
        try:
            await served(client, *WATCHED)
            await admitting(client)
            await make_namespace(client, NAMESPACE)
            async with recorded(client, NAMESPACE, NAME, WATCHED) as recording:
                told = Told(engine, recording)
                await Story(engine, client, told, directory / "home").tell()
            told.log = log()
            return told
        finally:
            await client.close()


@pytest.fixture(scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    directory = tmp_path_factory.mktemp("both")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CLUSTERCTL_DISABLE_VERSIONCHECK", "true")
        ours, theirs = await asyncio.gather(told_on(embedded, directory / "e"), told_on(real, directory / "r"))
    return ours, theirs


# --- what must hold -------------------------------------------------------------------------------------------------


def test_the_same_is_told_of_every_object_in_the_same_order(both: tuple[Told, Told]) -> None:
    ours, theirs = both
    found = differences(ours.recording, theirs.recording)
    assert not found, "\n".join(found)


def test_each_step_was_to_be_seen(both: tuple[Told, Told]) -> None:
    """Else the comparison would compare little."""
    for told in both:
        machines = told.recording.by_role()["Machine <machine of <set 2>>"]
        phases_of = [[each for each in machine.told["phase"] if each.text] for machine in machines]
        lasting = [[each.text for each in phases if not each.fleeting] for phases in phases_of]
        assert [phases[:4] for phases in lasting] == [["Pending", "Provisioning", "Provisioned", "Running"]] * 4
        (deployment,) = told.recording.by_role()[f"MachineDeployment {WORKERS}"]
        assert "True | Deleting | Deleting 3 Machines" in {each.text for each in deployment.told["Deleting"]}
        assert {each.text[:5] for machine in machines for each in machine.told["HealthCheckSucceeded"]} == {
            "True ",
            "False",
        }


def test_all_that_is_stored_in_the_end_is_the_same(both: tuple[Told, Told]) -> None:
    ours, theirs = (sorted(normalized(told.recording.names, obj) for obj in told.final) for told in both)
    assert len(ours) > 20
    for one, other in zip(ours, theirs, strict=True):
        assert json.loads(one) == json.loads(other)


@pytest.mark.parametrize("command", ["clusterctl describe cluster", "herder describe cluster", "kubectl get nodes"])
def test_programs_show_the_same(both: tuple[Told, Told], command: str) -> None:
    ours, theirs = (table(told.recording.names, told.shown[command]) for told in both)
    assert ours == theirs


def test_the_kubeconfig_that_clusterctl_hands_out_opens_the_cluster(both: tuple[Told, Told]) -> None:
    for told in both:
        nodes = table(told.recording.names, told.shown["kubectl get nodes"])
        assert len([line for line in nodes if " Ready " in line]) == 4, nodes


def test_no_secret_is_told_anywhere(both: tuple[Told, Told]) -> None:
    for told in both:
        secrets = set(secrets_in(told))
        assert len(secrets) > 10
        texts = [json.dumps(obj) for obj in (*told.recording.seen, *told.events)] + [told.log]
        assert not [secret[:20] for secret in secrets if any(secret in text for text in texts)]


# --- the same, whatever its name ------------------------------------------------------------------------------------


def table(roles: Names, printed: str) -> list[str]:
    """Rows without widths and ages, in no order: they are sorted by names that are chance."""
    lines = [re.sub(r"\b\d+[smhd](\d+s)?\b", "<age>", roles.masked(line)) for line in printed.splitlines()]
    return sorted(" ".join(re.sub(r"[├─└│]", " ", line).split()) for line in lines)


def secrets_in(told: Told) -> Iterator[str]:
    """As they are stored, and the lines of every private key."""
    for secret in told.secrets:
        for value in (secret.get("data") or {}).values():
            yield value
            yield from private_lines(base64.b64decode(value).decode())
    config = yaml.safe_load(told.shown["clusterctl get kubeconfig"])
    for user in config["users"]:
        yield user["user"]["client-key-data"]
        yield from private_lines(base64.b64decode(user["user"]["client-key-data"]).decode())


def private_lines(text: str) -> Iterator[str]:
    for key in re.findall(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\n(.*?)-----END", text, re.DOTALL):
        yield from key.split()
