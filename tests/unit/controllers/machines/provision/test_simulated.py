"""Simulated lifecycle of machines: Jobs that succeed, Jobs that fail, and a manager that crashes anywhere."""

from __future__ import annotations

import asyncio
import base64
import itertools

import pytest

from herder.api.capi.conditions import find, is_false
from herder.api.capi.kinds import CLUSTER, MACHINE, NAMESPACE, SECRET
from herder.api.capi.names import annotations_of
from herder.api.machines import names
from herder.api.machines.credentials import CREATED_BY, CREATOR, USED_BY
from herder.api.machines.jobs import JOB, ROLE, ROLE_BINDING
from herder.api.machines.kinds import NODE_DRIVER
from herder.api.machines.state import STATE_FINALIZER
from herder.engine.meta.kinds import Object
from herder.sim.faults import ROUGH
from tests.support.builders import new_condition, new_manifest
from tests.unit.controllers.machines.provision.simulation import KINDS, NS, SECRET_KEY, Simulation, simulate

PROGRAM_MESSAGES = "a program may print anything when it ends; the test checks what is reported of it"


async def create_and_delete(simulation: Simulation) -> None:
    await simulation.create_cluster(machines=2)
    await simulation.until(lambda: simulation.are_created(2))
    assert set(simulation.cloud.servers.values()) == {1}
    await simulation.until(simulation.is_cleaned_up)
    for infra in await simulation.all(KINDS.machine):
        state = await simulation.client.get(
            SECRET.resource, names.state_secret(infra["metadata"]["name"]), namespace=NS
        )
        assert STATE_FINALIZER in state["metadata"]["finalizers"]
        assert infra["status"]["cloudCredentialSecretName"] == "aws"
    assert set(simulation.cloud.creations.values()) == {1}
    await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
    await simulation.until(simulation.is_gone)
    assert simulation.cloud.servers == {}
    assert set(simulation.cloud.creations.values()) == {1}


def test_machines_are_created_and_deleted_and_only_their_logs_remain() -> None:
    async def scenario(simulation: Simulation) -> None:
        await create_and_delete(simulation)
        logs = await simulation.logs()
        assert len(logs) == 2
        for data in logs:
            assert set(data) == {names.CREATE_LOG, names.REMOVE_LOG}
            assert "pre-create checks" in data[names.CREATE_LOG]
            assert SECRET_KEY not in str(data)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_no_machine_is_duplicated_or_leaked_when_the_manager_crashes(seed: int) -> None:
    simulate(create_and_delete, seed=seed, faults=ROUGH)


# --- failed creations -----------------------------------------------------------------------------------------------


@pytest.mark.allow_secret_in("pods", because=PROGRAM_MESSAGES)
def test_a_machine_that_cannot_be_created_is_replaced_and_cleaned_up() -> None:
    """Its MachineSet creates replacements until one succeeds."""
    failures = iter(["before: no such region", "halfway: quota exceeded for " + SECRET_KEY])

    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        await simulation.until(lambda: simulation.has_servers(1))
        assert len(simulation.cloud.creations) == 3
        logs = await simulation.logs()
        assert any(names.REMOVE_LOG in log for log in logs), "a Job removed the half-created server"

    simulate(scenario, fails=lambda arguments: next(failures, "") if "create" in arguments else "")


@pytest.mark.allow_secret_in("pods", because=PROGRAM_MESSAGES)
def test_a_failure_is_reported_without_secrets_and_a_standalone_machine_stays() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=0)
        await simulation.create_standalone_machine("alone")
        await simulation.until(lambda: simulation.has_failed("alone"))
        infra = await simulation.infra("alone")
        assert infra["status"]["failureReason"] == "CreateError"
        assert infra["status"]["failureMessage"] == "halfway: key *** is not known in region eu-central-1"
        for type_ in ("CreateJob", "Ready"):
            condition = find(infra, type_)
            assert condition is not None
            assert condition["reason"] == "CreateError"
            assert condition["message"] == (
                "failed creating server [default/alone] of kind (Amazonec2Machine) for machine alone in infrastructure "
                "provider: CreateError: halfway: key *** is not known in region eu-central-1"
            )
        await asyncio.sleep(3600)
        assert not (await simulation.client.get(MACHINE.resource, "alone", namespace=NS))["metadata"].get(
            "deletionTimestamp"
        )
        await simulation.client.delete(MACHINE.resource, "alone", namespace=NS)
        await simulation.until(lambda: simulation.has_servers(0))
        await simulation.until(simulation.has_no_machines)

    failure = f"halfway: key {SECRET_KEY} is not known in region eu-central-1"
    simulate(scenario, fails=lambda arguments: failure if "create" in arguments else "")


@pytest.mark.parametrize("seed", range(6))
def test_failing_jobs_and_a_crashing_manager_leak_nothing(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        def fail_sometimes(arguments: list[str]) -> str:
            chance = simulation.world.random.random()
            return "before: no" if chance < 0.15 else "halfway: no" if chance < 0.3 else ""

        simulation.cloud.fails = fail_sometimes
        await simulation.create_cluster(machines=2)
        await simulation.until(lambda: simulation.are_created(2))
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await simulation.until(simulation.is_gone, within=36000)
        assert simulation.cloud.servers == {}

    simulate(scenario, seed=seed, faults=ROUGH)


# --- credentials ----------------------------------------------------------------------------------------------------


def test_an_incomplete_credential_is_reported_and_its_fix_is_observed() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1, credential={"accessKey": "AKIA123456"})

        async def is_reported() -> bool:
            return any(is_false(infra, "CreateJob") for infra in await simulation.all(KINDS.machine))

        await simulation.until(is_reported, within=60)
        (infra,) = await simulation.all(KINDS.machine)
        assert (find(infra, "CreateJob") or {})["message"] == (
            'Secret default/aws: driver amazonec2 requires field "secretKey"; '
            "add key amazonec2credentialConfig-secretKey"
        )
        assert await simulation.all(JOB) == []
        key = base64.b64encode(SECRET_KEY.encode()).decode()
        await simulation.patch(SECRET, "aws", {"data": {"amazonec2credentialConfig-secretKey": key}})
        await simulation.until(lambda: simulation.are_created(1), within=60)

    simulate(scenario)


def test_a_credential_lists_its_users_and_grants_its_creator_rights_once() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=2)
        await simulation.patch(SECRET, "aws", {"metadata": {"annotations": {CREATOR: "u-abc"}}})
        await simulation.until(lambda: simulation.are_created(2))
        await asyncio.sleep(10)
        secret = await simulation.client.get(SECRET.resource, "aws", namespace=NS)
        infras = sorted(infra["metadata"]["name"] for infra in await simulation.all(KINDS.machine))
        users = ", ".join(f"Amazonec2Machine/{name}" for name in infras)
        assert annotations_of(secret) == {USED_BY: users, CREATED_BY: "u-abc"}
        role = await simulation.client.get(ROLE.resource, "u-abc-aws-cloud-credential", namespace=NS)
        assert role["rules"][0]["verbs"] == ["get", "update", "delete"]
        assert role["rules"][0]["resourceNames"] == ["aws"]
        binding = await simulation.client.get(ROLE_BINDING.resource, "u-abc-aws-cloud-credential", namespace=NS)
        assert binding["subjects"][0]["name"] == "u-abc"

    simulate(scenario)


@pytest.mark.allow_secret_in(
    "configmaps", because="the simulated program prints the previous key, which was not passed to it"
)
def test_a_rotated_credential_reaches_the_removal_job() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        rotated = base64.b64encode(b"another-secret-key").decode()
        await simulation.patch(SECRET, "aws", {"data": {"amazonec2credentialConfig-secretKey": rotated}})
        simulation.cloud.fails = lambda _arguments: "wait"
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)

        async def uses_rotated_key() -> bool:
            secrets = await simulation.all(SECRET)
            return any((s.get("data") or {}).get("AWS_SECRET_KEY") == rotated for s in secrets)

        await simulation.until(uses_rotated_key)
        simulation.cloud.fails = lambda _arguments: ""
        await simulation.until(simulation.is_gone)
        assert set(simulation.cloud.creations.values()) == {1}, "no machine was replaced"

    simulate(scenario)


# --- removals -------------------------------------------------------------------------------------------------------


def test_a_machine_deleted_during_its_creation_is_created_first() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)

        async def has_started() -> bool:
            return bool(simulation.cloud.creations)

        await simulation.until(has_started)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await simulation.until(simulation.is_gone)
        assert simulation.cloud.servers == {}

    simulate(scenario)


def test_a_failed_removal_is_reported_and_retried_with_backoff() -> None:
    removals: list[float] = []

    async def scenario(simulation: Simulation) -> None:
        def fails(arguments: list[str]) -> str:
            if "rm" in arguments:
                removals.append(asyncio.get_running_loop().time())
            return "quota of patience exceeded" if "rm" in arguments and len(removals) < 4 else ""

        simulation.cloud.fails = fails
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)

        async def is_reported() -> bool:
            return "DeleteError" in [
                (i.get("status") or {}).get("failureReason") for i in await simulation.all(KINDS.machine)
            ]

        await simulation.until(is_reported)
        name = infra["metadata"]["name"]
        assert (find(await simulation.infra(name), "DeleteJob") or {})["message"] == (
            f"failed deleting server [default/{name}] of kind (Amazonec2Machine) for machine {name} "
            "in infrastructure provider: DeleteError: quota of patience exceeded"
        )
        await simulation.until(simulation.is_gone, within=36000)
        pauses = [later - sooner for sooner, later in itertools.pairwise(removals)]
        assert len(pauses) == 3
        assert pauses[0] < pauses[1] < pauses[2]

    simulate(scenario)


def test_a_change_retries_a_removal_at_once() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.cloud.fails = lambda arguments: "no" if "rm" in arguments else ""
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(600)  # by now it is retried every few minutes
        assert simulation.cloud.servers
        simulation.cloud.fails = lambda _arguments: ""
        await simulation.patch(
            KINDS.machine, infra["metadata"]["name"], {"metadata": {"annotations": {"touched": "yes"}}}
        )
        await simulation.until(simulation.is_gone, within=30)

    simulate(scenario)


def test_a_machine_can_be_abandoned() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.cloud.fails = lambda arguments: "no" if "rm" in arguments else ""
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(60)
        forced = {"metadata": {"annotations": {names.FORCE_REMOVE: "true"}}}
        simulation.abandoned.add(infra["metadata"]["name"])
        await simulation.patch(KINDS.machine, infra["metadata"]["name"], forced)
        await simulation.until(simulation.is_gone, within=60)

    simulate(scenario)


def test_a_machine_needs_its_credential_but_not_its_node_driver_for_removal() -> None:
    """Without the NodeDriver it can be removed; without the credential only by abandoning it."""

    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        name = infra["metadata"]["name"]
        await simulation.client.delete(NODE_DRIVER.resource, "amazonec2")
        secret = await simulation.client.get(SECRET.resource, "aws", namespace=NS)
        await simulation.client.delete(SECRET.resource, "aws", namespace=NS)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(60)
        assert (find(await simulation.infra(name), "DeleteJob") or {})["message"] == (
            "spec.common.cloudCredentialSecretName: Secret default/aws does not exist; create it, with type "
            "provisioning.cattle.io/cloud-credential; or set annotation "
            "provisioning.cattle.io/force-machine-remove: true to abandon the machine"
        )
        again = {**secret, "metadata": {"name": "aws"}}
        await simulation.client.create(SECRET.resource, again, namespace=NS)
        await simulation.until(simulation.is_gone, within=60)

    simulate(scenario)


def test_machine_state_survives_the_deletion_of_its_namespace() -> None:
    """No Job can be created in a terminating namespace, so the machines are not removed."""

    async def scenario(simulation: Simulation) -> None:
        await simulation.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, "team"))
        await simulation.create_cluster(machines=1, namespace="team")
        await simulation.until(lambda: simulation.are_created(1, "team"))
        (infra,) = await simulation.all(KINDS.machine, "team")
        simulation.abandoned.add(infra["metadata"]["name"])
        await simulation.client.delete(NAMESPACE.resource, "team")

        async def is_gone() -> bool:
            return not any(
                n["metadata"]["name"] == "team" for n in (await simulation.client.list(NAMESPACE.resource)).items
            )

        await simulation.until(is_gone)
        (archived,) = await simulation.all(SECRET, names.ARCHIVE_NAMESPACE)
        assert archived["type"] == names.STATE_SECRET_TYPE
        assert archived["data"][names.STATE_KEY]

    simulate(scenario)


def test_an_unschedulable_job_does_not_block_the_deletion_of_a_machine() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.cloud.unschedulable = True
        await simulation.create_cluster(machines=1)

        async def has_started() -> bool:
            return bool(await simulation.all(JOB))

        await simulation.until(has_started)
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await simulation.until(simulation.is_gone, within=120)

    simulate(scenario)


# --- lost objects ---------------------------------------------------------------------------------------------------


def test_a_deleted_job_does_not_cause_a_second_machine() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)

        async def has_started() -> bool:
            return bool(simulation.cloud.servers)

        await simulation.until(has_started)
        (job,) = await simulation.all(JOB)
        await simulation.client.delete(JOB.resource, job["metadata"]["name"], namespace=NS)
        await simulation.until(lambda: simulation.are_created(1))
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await simulation.until(simulation.is_gone)
        assert simulation.cloud.servers == {}

    simulate(scenario)


def test_the_finalizer_of_a_state_secret_is_restored() -> None:
    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        state = names.state_secret(infra["metadata"]["name"])
        await simulation.patch(SECRET, state, {"metadata": {"finalizers": None, "labels": None}})

        async def has_finalizer() -> bool:
            found = await simulation.client.get(SECRET.resource, state, namespace=NS)
            return STATE_FINALIZER in (found["metadata"].get("finalizers") or ())

        await simulation.until(has_finalizer, within=10)

    simulate(scenario)


def test_a_lost_pod_blocks_nothing() -> None:
    async def scenario(simulation: Simulation) -> None:
        simulation.cloud.loses_pods = True
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        await simulation.until(simulation.is_cleaned_up)
        assert [log[names.CREATE_LOG] for log in await simulation.logs()] == [
            "(the pod does not exist anymore; its log is lost)\n"
        ]

    simulate(scenario)


def test_an_existing_machine_is_not_created_again() -> None:
    """Its objects were moved to another API server, which does not keep the status."""

    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        await simulation.until(simulation.is_cleaned_up)
        (infra,) = await simulation.all(KINDS.machine)
        without_status: Object = {"status": {"conditions": None, "jobName": None}}
        await simulation.client.patch(
            KINDS.machine.resource, infra["metadata"]["name"], without_status, namespace=NS, subresource="status"
        )
        await simulation.until(lambda: simulation.are_created(1))
        assert set(simulation.cloud.creations.values()) == {1}

    simulate(scenario)


# --- other namespaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["Complete", ""], ids=["claims that the server is removed", "is never deleted"])
def test_a_job_in_another_namespace_does_not_belong_to_the_machine(ends: str) -> None:
    """Users who may create Jobs anywhere can name any machine as their owner, by its UID."""

    async def scenario(simulation: Simulation) -> None:
        await simulation.create_cluster(machines=1)
        await simulation.until(lambda: simulation.are_created(1))
        (infra,) = await simulation.all(KINDS.machine)
        await simulation.client.create(NAMESPACE.resource, new_manifest(NAMESPACE, "team"))
        forged = await simulation.client.create(JOB.resource, _forged_job(infra), namespace="team")
        if ends:
            status = {**(forged.get("status") or {}), "conditions": [new_condition(ends)]}
            await simulation.client.update(JOB.resource, {**forged, "status": status}, subresource="status")
        await simulation.client.delete(CLUSTER.resource, "c", namespace=NS)
        await simulation.until(simulation.is_gone)
        assert simulation.cloud.servers == {}

    simulate(scenario)


def _forged_job(infra: Object) -> Object:
    owner = {"apiVersion": infra["apiVersion"], "kind": infra["kind"], "controller": True}
    owner |= {field: infra["metadata"][field] for field in ("name", "uid")}
    labels = {names.INFRA_REMOVE_LABEL: "true", names.INFRA_NAME_LABEL: infra["metadata"]["name"]}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    spec = {"suspend": True, "template": {"spec": pod}}
    # The garbage collector finds no such owner in the namespace and deletes the Job, which the finalizer delays.
    return new_manifest(JOB, "a", labels=labels, owners=[owner], finalizers=["example.io/stay"], spec=spec)
