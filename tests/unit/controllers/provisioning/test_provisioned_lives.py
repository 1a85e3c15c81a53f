"""A cluster that is built here, on the embedded server with the real runtime: one object becomes all that it stands
for, follows edits, and goes without a trace."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

import pytest

from herder.api.capi.conditions import find, is_true
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, NAMESPACE
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.machines.names import ARCHIVE_NAMESPACE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke.cluster_spec import decode_spec
from herder.api.rke.kinds import BEACON, BOOTSTRAP, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.names import CLUSTER_SPEC, ROLES, TEMPLATE_HASH
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.unit.controllers.provisioning.provisioned import (
    KINDS,
    NAME,
    WORKSPACE,
    Pasture,
    cluster,
    config,
    pool,
)

SERVERS = pool("servers", "etcd", "controlPlane")
WORKERS = pool("workers", quantity=2, labels={"wool": "white"}, unhealthyNodeTimeout="5m", maxUnhealthy="40%")


async def settled(pasture: Pasture, machines: int) -> bool:
    return is_true(await pasture.cluster(), "RKECluster") and len(await pasture.all(MACHINE)) == machines


async def made(pasture: Pasture) -> None:
    await pasture.prepare()
    await pasture.create(PROVISIONING_CLUSTER, cluster(SERVERS, WORKERS, machineGlobalConfig={"debug": True}))
    await pasture.world.until(lambda: settled(pasture, 3))


def test_two_pools_become_all_objects_with_the_names_hashes_and_labels_of_upstream() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            digests = {
                pool: hashlib.sha256(f'{NAME}-{pool}{{"image":"debian","size":"small"}}'.encode()).hexdigest()[:8]
                for pool in ("servers", "workers")
            }
            for kind in (RKE_CLUSTER, CONTROL_PLANE, CLUSTER, BEACON):
                assert await pasture.names(kind) == [NAME]
            assert await pasture.names(BOOTSTRAP_TEMPLATE) == ["meadow-bootstrap-template"]
            assert await pasture.names(MACHINE_DEPLOYMENT) == ["meadow-servers", "meadow-workers"]
            assert await pasture.names(MACHINE_HEALTH_CHECK) == ["meadow-workers"]
            assert await pasture.names(KINDS.template) == [f"meadow-{pool}-{digests[pool]}" for pool in digests]
            for template in await pasture.all(KINDS.template):
                assert template["metadata"]["labels"][TEMPLATE_HASH] in template["metadata"]["name"]
            roles = {
                machine["metadata"]["labels"]["rke.cattle.io/rke-machine-pool-name"]: [
                    role in machine["metadata"]["labels"] for role in ROLES
                ]
                for machine in await pasture.all(MACHINE)
            }
            assert roles == {"servers": [True, True, False], "workers": [False, False, True]}

    loop.run(run(Pasture()))


def test_the_parts_know_one_another_and_the_control_plane_what_was_asked_for() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            asked = await pasture.cluster()
            plane = await pasture.get(CONTROL_PLANE, NAME)
            core = await pasture.get(CLUSTER, NAME)
            assert plane is not None
            assert core is not None
            assert plane["spec"]["managementClusterName"] == asked["status"]["clusterName"]
            assert plane["spec"]["machineGlobalConfig"] == {"debug": True}
            assert decode_spec(plane["metadata"]["annotations"][CLUSTER_SPEC]) == asked["spec"]
            assert core["spec"]["controlPlaneRef"] == {
                "apiGroup": "rke.cattle.io",
                "kind": "RKEControlPlane",
                "name": NAME,
            }
            assert core["metadata"]["ownerReferences"][0]["uid"] == asked["metadata"]["uid"]
            management = await pasture.get(MANAGEMENT_CLUSTER, asked["status"]["clusterName"])
            assert management is not None
            assert management["metadata"]["annotations"]["provisioning.cattle.io/administrated"] == "true"
            sheds = await pasture.get(KINDS.config, "sheds")
            assert sheds is not None
            assert sheds["metadata"]["ownerReferences"][0]["uid"] == asked["metadata"]["uid"]

    loop.run(run(Pasture()))


async def versions(pasture: Pasture) -> dict[str, str]:
    """The generation of everything that was made, by which it is seen what an edit touched."""
    kinds: tuple[Kind, ...] = (RKE_CLUSTER, CONTROL_PLANE, CLUSTER, BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT)
    found = [obj for kind in (*kinds, KINDS.template, MACHINE) for obj in await pasture.all(kind)]
    return {f"{obj['kind']} {obj['metadata']['name']}": obj["metadata"]["generation"] for obj in found}


async def touched(pasture: Pasture, before: dict[str, str]) -> list[str]:
    await asyncio.sleep(60)
    after = await versions(pasture)
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def test_an_edit_of_the_configuration_changes_the_control_plane_and_nothing_else() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            before = await versions(pasture)
            edit = {"spec": {"rkeConfig": {"machineGlobalConfig": {"debug": None, "profile": "cis"}}}}
            await pasture.patch(PROVISIONING_CLUSTER, NAME, edit)
            assert await touched(pasture, before) == ["RKEControlPlane meadow"]
            plane = await pasture.get(CONTROL_PLANE, NAME)
            assert plane is not None
            assert plane["spec"]["machineGlobalConfig"] == {"profile": "cis"}

    loop.run(run(Pasture()))


def test_a_configuration_can_be_emptied_again() -> None:
    """Where the last entry of a mapping goes, API servers leave null, which the control plane's schema refuses."""
    full = {
        "machineGlobalConfig": {"profile": "cis"},
        "registries": {"mirrors": {"docker.io": {"endpoint": ["https://mirror.example.com"]}}},
        "chartValues": {"rke2-calico": {"installation": {"flexVolumePath": "/opt"}}},
    }
    empty = {
        "machineGlobalConfig": {},
        "registries": {"mirrors": {}},
        "chartValues": {"rke2-calico": {"installation": {}}},
    }

    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:

            async def is_reported(wanted: Object) -> bool:
                plane = await pasture.get(CONTROL_PLANE, NAME)
                return plane is not None and wanted.items() <= plane["spec"].items()

            await pasture.prepare()
            await pasture.create(PROVISIONING_CLUSTER, cluster(**full))
            await world.until(lambda: is_reported(full), within=30)
            found = await pasture.cluster()
            found["spec"]["rkeConfig"] = empty
            await world.client.update(PROVISIONING_CLUSTER.resource, found)
            await world.until(lambda: is_reported(empty), within=30)

    loop.run(run(Pasture()))


def test_an_edit_of_the_infrastructure_makes_a_new_template_and_the_old_one_stays() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            before = set(await pasture.names(KINDS.template))
            await pasture.patch(KINDS.config, "sheds", {"size": "large"})
            await asyncio.sleep(60)
            after = set(await pasture.names(KINDS.template))
            assert after > before
            assert len(after - before) == 2
            used = {
                each["spec"]["template"]["spec"]["infrastructureRef"]["name"]
                for each in await pasture.all(MACHINE_DEPLOYMENT)
            }
            assert used == after - before, "so Cluster API replaces the machines"

    loop.run(run(Pasture()))


async def commons(pasture: Pasture) -> list[Object | None]:
    """What the machines of each pool have in common, whatever they are made on."""
    return [each["spec"]["template"]["spec"].get("common") for each in await pasture.all(KINDS.template)]


def test_labels_taints_and_credentials_change_templates_in_place_and_replace_no_machine() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            machines, known = await pasture.names(MACHINE), await pasture.names(KINDS.template)
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "cc-shed", "namespace": WORKSPACE},
                "type": "provisioning.cattle.io/cloud-credential",
            }
            await pasture.create(Kind("", "v1", "Secret", "secrets"), secret)
            taint = {"key": "wolves", "value": "near", "effect": "NoSchedule"}
            changed = {
                **WORKERS,
                "labels": {"wool": "black"},
                "taints": [taint],
                "cloudCredentialSecretName": "cc-shed",
            }
            await pasture.edit_pools(SERVERS, changed)
            await asyncio.sleep(60)
            assert await pasture.names(KINDS.template) == known
            assert await pasture.names(MACHINE) == machines
            assert {"labels": {"wool": "black"}, "taints": [taint], "cloudCredentialSecretName": "cc-shed"} in (
                await commons(pasture)
            )
            told = [each["metadata"].get("annotations") or {} for each in await pasture.all(BOOTSTRAP)]
            assert '{"wool":"black"}' in [each.get("rke.cattle.io/labels") for each in told]
            await pasture.edit_pools(SERVERS, {**WORKERS, "labels": {}})
            await asyncio.sleep(60)
            assert await commons(pasture) == [None, None], "they can all be taken away again"
            told = [each["metadata"].get("annotations") or {} for each in await pasture.all(BOOTSTRAP)]
            assert not any({"rke.cattle.io/labels", "rke.cattle.io/taints"} & set(each) for each in told)
            assert await pasture.names(KINDS.template) == known

    loop.run(run(Pasture()))


def test_a_pool_that_is_no_longer_asked_for_goes_with_its_machines_and_its_health_check() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            await pasture.edit_pools(SERVERS)

            async def is_pruned() -> bool:
                left = [await pasture.names(kind) for kind in (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK)]
                return left == [["meadow-servers"], []] and await settled(pasture, 1)

            await pasture.world.until(is_pruned)

    loop.run(run(Pasture()))


def test_fields_that_a_driver_gained_later_do_not_reach_pools_that_are_there() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world:
            await made(pasture)
            filled = (await pasture.cluster())["spec"]["rkeConfig"]["machinePools"][0]["dynamicSchemaSpec"]
            new = {"spec": {"resourceFields": {"door": {"type": "string", "create": True}}}}
            await pasture.world.client.patch(DYNAMIC_SCHEMA.resource, "shedconfig", new)
            await asyncio.sleep(5)  # until the manager has heard of it
            await pasture.edit_pools({**SERVERS, "displayName": "Servers"}, WORKERS, pool("lambs"))
            await pasture.world.until(lambda: settled(pasture, 4))
            pools = (await pasture.cluster())["spec"]["rkeConfig"]["machinePools"]
            assert [each["dynamicSchemaSpec"] == filled for each in pools] == [True, True, False]
            assert len(await pasture.all(KINDS.template)) == 3

    loop.run(run(Pasture()))


PROBLEMS = {
    "no role": (
        {**pool("lazy"), "workerRole": False},
        'spec.rkeConfig.machinePools[0] "lazy": at least one of etcdRole, controlPlaneRole and workerRole must be true',
    ),
    "no config": (
        pool("lost", config="elsewhere"),
        'spec.rkeConfig.machinePools[0] "lost".machineConfigRef: ShedConfig fleet-default/elsewhere does not exist',
    ),
    "no driver": (
        {**pool("unknown"), "machineConfigRef": {"kind": "BarnConfig", "name": "barn"}},
        'spec.rkeConfig.machinePools[0] "unknown".machineConfigRef.kind: no node driver for BarnConfig (DynamicSchema '
        "barnconfig does not exist); activate its NodeDriver",
    ),
    "no credential": (
        pool("poor", cloudCredentialSecretName="purse"),
        'spec.rkeConfig.machinePools[0] "poor".cloudCredentialSecretName: Secret fleet-default/purse does not exist',
    ),
    "another's credential": (
        pool("thief", cloudCredentialSecretName="other:purse"),
        'spec.rkeConfig.machinePools[0] "thief": cloud credential other:purse is in another namespace; name one of the '
        "cluster's own, or cattle-global-data:<name>",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_cannot_be_made_is_told_with_the_fields_name_and_nothing_is_made(case: str) -> None:
    asked, told = PROBLEMS[case]

    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await pasture.prepare()
            await pasture.create(PROVISIONING_CLUSTER, cluster(asked))

            async def complains() -> bool:
                return (find(await pasture.cluster(), "RKECluster") or {}).get("message") == told

            await world.until(complains, within=60)
            assert await pasture.names(CONTROL_PLANE) == []

    loop.run(run(Pasture()))


def test_a_config_of_another_cluster_is_not_used() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await made(pasture)
            other = cluster(pool("workers"))
            other["metadata"]["name"] = "heath"
            await pasture.create(PROVISIONING_CLUSTER, other)

            async def complains() -> bool:
                found = await pasture.get(PROVISIONING_CLUSTER, "heath")
                return "already owned by cluster meadow" in (find(found, "RKECluster") or {}).get("message", "")

            await world.until(complains, within=60)

    loop.run(run(Pasture()))


def test_a_problem_that_is_solved_lets_the_cluster_go_on_by_itself() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await pasture.prepare()
            await pasture.create(PROVISIONING_CLUSTER, cluster(pool("workers", config="barns")))
            await world.until(lambda: _is_false(pasture, "RKECluster"), within=60)
            await pasture.create(KINDS.config, config("barns", image="debian"))
            await world.until(lambda: settled(pasture, 1), within=60)

    loop.run(run(Pasture()))


async def _is_false(pasture: Pasture, type_: str) -> bool:
    return (find(await pasture.cluster(), type_) or {}).get("status") == "False"


# --- what its control plane says ------------------------------------------------------------------------------------


def condition(type_: str, status: str, message: str = "") -> Object:
    return {"type": type_, "status": status, "reason": "Waiting", "message": message}


async def plane_says(pasture: Pasture, *conditions: Object) -> None:
    """In the planner's place."""
    await pasture.patch(CONTROL_PLANE, NAME, {"status": {"conditions": [*conditions]}}, subresource="status")


def test_the_control_planes_words_are_those_of_the_cluster_of_its_management_cluster_and_of_the_log() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await made(pasture)
            home = (await pasture.cluster())["status"]["clusterName"]
            for message in ("waiting for machines", "configuring bootstrap node(s) meadow-servers-0"):
                await plane_says(pasture, condition("Ready", "Unknown", message), condition("Stable", "False"))

                async def is_reported(message: str = message) -> bool:
                    found = await pasture.cluster(), await pasture.get(MANAGEMENT_CLUSTER, home)
                    told = [
                        (find(each, type_) or {}).get("message") for each in found for type_ in ("Updated", "Ready")
                    ]
                    log = await pasture.get(CONFIG_MAP, "provisioning-log", home)
                    return told == [message] * 4 and (log or {}).get("data", {}).get("last") == message

                await world.until(is_reported, within=30)
            management = await pasture.get(MANAGEMENT_CLUSTER, home)
            assert management is not None
            assert management["status"]["readyReconciling"] is True
            log = await pasture.get(CONFIG_MAP, "provisioning-log", home)
            assert log is not None
            lines = log["data"]["log"].splitlines()
            assert [line.split(" ", 1)[1] for line in lines] == [
                "[INFO ] waiting for machines",
                "[INFO ] configuring bootstrap node(s) meadow-servers-0",
            ]

    loop.run(run(Pasture()))


def test_the_cluster_has_the_endpoint_of_its_control_plane_and_follows_it() -> None:
    async def run(pasture: Pasture) -> None:
        async with pasture.world as world:
            await made(pasture)

            async def endpoint(kind: Kind) -> Object | None:
                found: Object = ((await pasture.get(kind, NAME)) or {})["spec"]
                return found.get("controlPlaneEndpoint")

            async def is_at(host: str) -> bool:
                return await endpoint(CLUSTER) == {"host": host, "port": 6443}

            assert await endpoint(CLUSTER) is None
            for host in ("10.0.0.7", "10.0.0.8"):
                moved = {"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}}
                await pasture.patch(CONTROL_PLANE, NAME, moved)
                await world.until(partial(is_at, host), within=30)
            assert await endpoint(RKE_CLUSTER) is None

    loop.run(run(Pasture()))


# --- its end --------------------------------------------------------------------------------------------------------

_MADE = (RKE_CLUSTER, CONTROL_PLANE, CLUSTER, BEACON, BOOTSTRAP_TEMPLATE, BOOTSTRAP, MACHINE_DEPLOYMENT, MACHINE)


async def live(pasture: Pasture) -> None:
    async with pasture.world as world:
        await made(pasture)
        await pasture.patch(KINDS.config, "sheds", {"size": "large"})
        await asyncio.sleep(30)
        await world.client.delete(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)

        async def is_gone() -> bool:
            kinds = (*_MADE, MACHINE_HEALTH_CHECK, KINDS.template, KINDS.machine, KINDS.config, PROVISIONING_CLUSTER)
            left = [name for kind in (*kinds, MANAGEMENT_CLUSTER) for name in await pasture.names(kind)]
            spaces = [name for name in await pasture.names(NAMESPACE) if name.startswith("c-m-")]
            return not left and not spaces

        await world.until(is_gone)
        [log] = await archived(pasture)
        assert "to delete" in log
        await pasture.create(KINDS.config, config("sheds", image="debian", size="small"))
        await pasture.create(PROVISIONING_CLUSTER, cluster(SERVERS))

        async def is_logged() -> bool:
            return len(await archived(pasture)) == 2

        await world.until(lambda: _is_there(pasture, CONTROL_PLANE), within=600)
        await plane_says(pasture, condition("Ready", "Unknown", "waiting for machines"))
        await world.until(is_logged, within=600)
        assert log in await archived(pasture), "the next cluster of that name has a log of its own"


async def _is_there(pasture: Pasture, kind: Kind) -> bool:
    return await pasture.get(kind, NAME) is not None


async def archived(pasture: Pasture) -> list[str]:
    """The logs that are kept."""
    kept = [each for each in await pasture.all(CONFIG_MAP) if each["metadata"]["namespace"] == ARCHIVE_NAMESPACE]
    return [each["data"]["log"] for each in kept if "log" in each["data"]]


@pytest.mark.parametrize(("seed", "faults"), [(0, NONE), (1, ROUGH), (2, ROUGH), (3, ROUGH)])
def test_a_deleted_cluster_leaves_nothing_but_its_log(seed: int, faults: Faults) -> None:
    loop.run(live(Pasture(seed, faults)))
