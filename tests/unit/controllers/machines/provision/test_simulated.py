"""Machines from beginning to end, on virtual time: Jobs that work and Jobs that fail, a manager that dies anywhere."""

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
from tests.unit.controllers.machines.provision.play import KINDS, NS, SECRET_KEY, Play, simulate

PROGRAM_TELLS = "a program may say anything when it ends; what we tell of it is the test's matter"


async def a_whole_life(play: Play) -> None:
    await play.begin(machines=2)
    await play.until(lambda: play.created(2))
    assert set(play.cloud.servers.values()) == {1}
    await play.until(play.tidied)
    for infra in await play.all(KINDS.machine):
        state = await play.client.get(SECRET.resource, names.state_secret(infra["metadata"]["name"]), namespace=NS)
        assert STATE_FINALIZER in state["metadata"]["finalizers"]
        assert infra["status"]["cloudCredentialSecretName"] == "aws"
    assert set(play.cloud.creations.values()) == {1}
    await play.client.delete(CLUSTER.resource, "c", namespace=NS)
    await play.until(play.gone)
    assert play.cloud.servers == {}
    assert set(play.cloud.creations.values()) == {1}


def test_machines_are_made_and_removed_and_only_their_logs_are_left() -> None:
    async def story(play: Play) -> None:
        await a_whole_life(play)
        kept = await play.logs()
        assert len(kept) == 2
        for data in kept:
            assert set(data) == {names.CREATE_LOG, names.REMOVE_LOG}
            assert "pre-create checks" in data[names.CREATE_LOG]
            assert SECRET_KEY not in str(data)

    simulate(story)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_made_twice_and_nothing_is_left_wherever_the_manager_dies(seed: int) -> None:
    simulate(a_whole_life, seed=seed, faults=ROUGH)


# --- creation that fails --------------------------------------------------------------------------------------------


@pytest.mark.tells("pods", because=PROGRAM_TELLS)
def test_a_machine_that_cannot_be_created_is_replaced_and_what_it_left_is_removed() -> None:
    """Its MachineSet makes others, until one works."""
    failures = iter(["before: no such region", "halfway: quota exceeded for " + SECRET_KEY])

    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        await play.until(lambda: play.servers(1))
        assert len(play.cloud.creations) == 3
        logs = await play.logs()
        assert any(names.REMOVE_LOG in log for log in logs), "what was made halfway was removed by a Job"

    simulate(story, fails=lambda words: next(failures, "") if "create" in words else "")


@pytest.mark.tells("pods", because=PROGRAM_TELLS)
def test_why_it_failed_is_told_without_secrets_and_a_machine_of_nobody_stays() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=0)
        await play.lone_machine("alone")
        await play.until(lambda: play.failed("alone"))
        infra = await play.infra("alone")
        assert infra["status"]["failureReason"] == "CreateError"
        assert infra["status"]["failureMessage"] == "halfway: key *** is not known in region eu-central-1"
        for type_ in ("CreateJob", "Ready"):
            told = find(infra, type_)
            assert told is not None
            assert told["reason"] == "CreateError"
            assert told["message"] == (
                "failed creating server [default/alone] of kind (Amazonec2Machine) for machine alone in infrastructure "
                "provider: CreateError: halfway: key *** is not known in region eu-central-1"
            )
        await asyncio.sleep(3600)
        assert not (await play.client.get(MACHINE.resource, "alone", namespace=NS))["metadata"].get("deletionTimestamp")
        await play.client.delete(MACHINE.resource, "alone", namespace=NS)
        await play.until(lambda: play.servers(0))
        await play.until(play.no_machines)

    said = f"halfway: key {SECRET_KEY} is not known in region eu-central-1"
    simulate(story, fails=lambda words: said if "create" in words else "")


@pytest.mark.parametrize("seed", range(6))
def test_failing_jobs_and_a_dying_manager_together_leave_nothing_behind(seed: int) -> None:
    async def story(play: Play) -> None:
        def sometimes(words: list[str]) -> str:
            how = play.world.random.random()
            return "before: no" if how < 0.15 else "halfway: no" if how < 0.3 else ""

        play.cloud.fails = sometimes
        await play.begin(machines=2)
        await play.until(lambda: play.created(2))
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await play.until(play.gone, within=36000)
        assert play.cloud.servers == {}

    simulate(story, seed=seed, faults=ROUGH)


# --- credentials ----------------------------------------------------------------------------------------------------


def test_a_credential_that_lacks_a_field_is_told_and_its_correction_is_noticed() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=1, credential={"accessKey": "AKIA123456"})

        async def told() -> bool:
            return any(is_false(infra, "CreateJob") for infra in await play.all(KINDS.machine))

        await play.until(told, within=60)
        (infra,) = await play.all(KINDS.machine)
        assert (find(infra, "CreateJob") or {})["message"] == (
            'Secret default/aws: driver amazonec2 requires field "secretKey"; '
            "add key amazonec2credentialConfig-secretKey"
        )
        assert await play.all(JOB) == []
        key = base64.b64encode(SECRET_KEY.encode()).decode()
        await play.patch(SECRET, "aws", {"data": {"amazonec2credentialConfig-secretKey": key}})
        await play.until(lambda: play.created(1), within=60)

    simulate(story)


def test_a_credential_tells_its_users_and_gives_its_creator_rights_once() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=2)
        await play.patch(SECRET, "aws", {"metadata": {"annotations": {CREATOR: "u-abc"}}})
        await play.until(lambda: play.created(2))
        await asyncio.sleep(10)
        secret = await play.client.get(SECRET.resource, "aws", namespace=NS)
        infras = sorted(infra["metadata"]["name"] for infra in await play.all(KINDS.machine))
        users = ", ".join(f"Amazonec2Machine/{name}" for name in infras)
        assert annotations_of(secret) == {USED_BY: users, CREATED_BY: "u-abc"}
        role = await play.client.get(ROLE.resource, "u-abc-aws", namespace=NS)
        assert role["rules"][0]["verbs"] == ["get", "update", "delete"]
        assert role["rules"][0]["resourceNames"] == ["aws"]
        binding = await play.client.get(ROLE_BINDING.resource, "u-abc-aws", namespace=NS)
        assert binding["subjects"][0]["name"] == "u-abc"

    simulate(story)


@pytest.mark.tells("configmaps", because="the simulated program prints the key of before, which it was not given")
def test_a_rotated_credential_reaches_the_job_that_removes() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        rotated = base64.b64encode(b"another-secret-key").decode()
        await play.patch(SECRET, "aws", {"data": {"amazonec2credentialConfig-secretKey": rotated}})
        play.cloud.fails = lambda _words: "wait"
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)

        async def told() -> bool:
            secrets = await play.all(SECRET)
            return any((s.get("data") or {}).get("AWS_SECRET_KEY") == rotated for s in secrets)

        await play.until(told)
        play.cloud.fails = lambda _words: ""
        await play.until(play.gone)
        assert set(play.cloud.creations.values()) == {1}, "no machine was replaced"

    simulate(story)


# --- removal --------------------------------------------------------------------------------------------------------


def test_a_machine_that_is_deleted_while_it_is_being_created_is_created_first() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=1)

        async def begun() -> bool:
            return bool(play.cloud.creations)

        await play.until(begun)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await play.until(play.gone)
        assert play.cloud.servers == {}

    simulate(story)


def test_a_removal_that_fails_is_told_and_tried_again_ever_more_rarely() -> None:
    removals: list[float] = []

    async def story(play: Play) -> None:
        def fails(words: list[str]) -> str:
            if "rm" in words:
                removals.append(asyncio.get_running_loop().time())
            return "quota of patience exceeded" if "rm" in words and len(removals) < 4 else ""

        play.cloud.fails = fails
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)

        async def told() -> bool:
            return "DeleteError" in [
                (i.get("status") or {}).get("failureReason") for i in await play.all(KINDS.machine)
            ]

        await play.until(told)
        name = infra["metadata"]["name"]
        assert (find(await play.infra(name), "DeleteJob") or {})["message"] == (
            f"failed deleting server [default/{name}] of kind (Amazonec2Machine) for machine {name} "
            "in infrastructure provider: DeleteError: quota of patience exceeded"
        )
        await play.until(play.gone, within=36000)
        pauses = [later - sooner for sooner, later in itertools.pairwise(removals)]
        assert len(pauses) == 3
        assert pauses[0] < pauses[1] < pauses[2]

    simulate(story)


def test_whoever_changes_something_does_not_wait_for_the_next_attempt() -> None:
    async def story(play: Play) -> None:
        play.cloud.fails = lambda words: "no" if "rm" in words else ""
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(600)  # by now it is tried every few minutes
        assert play.cloud.servers
        play.cloud.fails = lambda _words: ""
        await play.patch(KINDS.machine, infra["metadata"]["name"], {"metadata": {"annotations": {"touched": "yes"}}})
        await play.until(play.gone, within=30)

    simulate(story)


def test_a_machine_can_be_given_up() -> None:
    async def story(play: Play) -> None:
        play.cloud.fails = lambda words: "no" if "rm" in words else ""
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(60)
        forced = {"metadata": {"annotations": {names.FORCE_REMOVE: "true"}}}
        play.abandoned.add(infra["metadata"]["name"])
        await play.patch(KINDS.machine, infra["metadata"]["name"], forced)
        await play.until(play.gone, within=60)

    simulate(story)


def test_a_machine_whose_node_driver_and_credential_are_gone() -> None:
    """Without the driver's object it is removed; without the credential it cannot be, until somebody gives it up."""

    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        name = infra["metadata"]["name"]
        await play.client.delete(NODE_DRIVER.resource, "amazonec2")
        secret = await play.client.get(SECRET.resource, "aws", namespace=NS)
        await play.client.delete(SECRET.resource, "aws", namespace=NS)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await asyncio.sleep(60)
        assert (find(await play.infra(name), "DeleteJob") or {})["message"] == (
            "spec.common.cloudCredentialSecretName: Secret default/aws does not exist; create it, with type "
            "provisioning.cattle.io/cloud-credential; or set annotation "
            "provisioning.cattle.io/force-machine-remove: true to abandon the machine"
        )
        again = {**secret, "metadata": {"name": "aws"}}
        await play.client.create(SECRET.resource, again, namespace=NS)
        await play.until(play.gone, within=60)

    simulate(story)


def test_what_is_known_of_machines_outlives_a_namespace_that_is_deleted() -> None:
    """No Job can be made in it any more, so they are not removed."""

    async def story(play: Play) -> None:
        await play.client.create(
            NAMESPACE.resource, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        )
        await play.begin(machines=1, namespace="team")
        await play.until(lambda: play.created(1, "team"))
        (infra,) = await play.all(KINDS.machine, "team")
        play.abandoned.add(infra["metadata"]["name"])
        await play.client.delete(NAMESPACE.resource, "team")

        async def gone() -> bool:
            return not any(n["metadata"]["name"] == "team" for n in (await play.client.list(NAMESPACE.resource)).items)

        await play.until(gone)
        (kept,) = await play.all(SECRET, names.ARCHIVE_NAMESPACE)
        assert kept["type"] == names.STATE_SECRET_TYPE
        assert kept["data"][names.STATE_KEY]

    simulate(story)


def test_a_job_that_finds_no_place_to_run_does_not_keep_a_machine_from_going() -> None:
    async def story(play: Play) -> None:
        play.cloud.is_full = True
        await play.begin(machines=1)

        async def begun() -> bool:
            return bool(await play.all(JOB))

        await play.until(begun)
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await play.until(play.gone, within=120)

    simulate(story)


# --- what is lost on the way ----------------------------------------------------------------------------------------


def test_a_job_that_somebody_deletes_is_not_a_second_machine() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=1)

        async def begun() -> bool:
            return bool(play.cloud.servers)

        await play.until(begun)
        (job,) = await play.all(JOB)
        await play.client.delete(JOB.resource, job["metadata"]["name"], namespace=NS)
        await play.until(lambda: play.created(1))
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await play.until(play.gone)
        assert play.cloud.servers == {}

    simulate(story)


def test_a_record_is_held_by_its_finalizer_whoever_takes_it_away() -> None:
    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        state = names.state_secret(infra["metadata"]["name"])
        await play.patch(SECRET, state, {"metadata": {"finalizers": None, "labels": None}})

        async def held() -> bool:
            found = await play.client.get(SECRET.resource, state, namespace=NS)
            return STATE_FINALIZER in (found["metadata"].get("finalizers") or ())

        await play.until(held, within=10)

    simulate(story)


def test_a_lost_pod_holds_nothing_up() -> None:
    async def story(play: Play) -> None:
        play.cloud.loses_pods = True
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        await play.until(play.tidied)
        assert [log[names.CREATE_LOG] for log in await play.logs()] == [
            "(the pod does not exist anymore; its log is lost)\n"
        ]

    simulate(story)


def test_a_machine_that_is_there_already_is_not_created_again() -> None:
    """Its objects were taken along to another server, which keeps no status."""

    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        await play.until(play.tidied)
        (infra,) = await play.all(KINDS.machine)
        gone: Object = {"status": {"conditions": None, "jobName": None}}
        await play.client.patch(
            KINDS.machine.resource, infra["metadata"]["name"], gone, namespace=NS, subresource="status"
        )
        await play.until(lambda: play.created(1))
        assert set(play.cloud.creations.values()) == {1}

    simulate(story)


# --- namespaces of others -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["Complete", ""], ids=["says that the server is removed", "never goes"])
def test_a_job_in_another_namespace_is_no_job_of_the_machine(ends: str) -> None:
    """Whoever may create Jobs somewhere can name any machine as their owner, by its uid."""

    async def story(play: Play) -> None:
        await play.begin(machines=1)
        await play.until(lambda: play.created(1))
        (infra,) = await play.all(KINDS.machine)
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        await play.client.create(NAMESPACE.resource, space)
        forged = await play.client.create(JOB.resource, _forged_job(infra), namespace="team")
        if ends:
            condition = {"type": ends, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            status = {**(forged.get("status") or {}), "conditions": [condition]}
            await play.client.update(JOB.resource, {**forged, "status": status}, subresource="status")
        await play.client.delete(CLUSTER.resource, "c", namespace=NS)
        await play.until(play.gone)
        assert play.cloud.servers == {}

    simulate(story)


def _forged_job(infra: Object) -> Object:
    owner = {"apiVersion": infra["apiVersion"], "kind": infra["kind"], "controller": True}
    owner |= {field: infra["metadata"][field] for field in ("name", "uid")}
    labels = {names.INFRA_REMOVE_LABEL: "true", names.INFRA_NAME_LABEL: infra["metadata"]["name"]}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}
    spec = {"suspend": True, "template": {"spec": pod}}
    # The garbage collector finds no such owner in the namespace and deletes the Job, which the finalizer delays.
    meta = {"name": "a", "labels": labels, "ownerReferences": [owner], "finalizers": ["example.io/stay"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
