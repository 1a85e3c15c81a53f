"""A provisioned cluster on the embedded server with the real runtime: it generates its objects, follows edits, and
deletes everything."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

import pytest

from herder.api.capi.conditions import find
from herder.api.capi.kinds import CLUSTER, MACHINE, MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK, NAMESPACE, SECRET
from herder.api.capi.names import annotations_of
from herder.api.machines.archive import CONFIG_MAP
from herder.api.machines.kinds import DYNAMIC_SCHEMA
from herder.api.machines.names import ARCHIVE_NAMESPACE
from herder.api.management.kinds import MANAGEMENT_CLUSTER, PROVISIONING_CLUSTER
from herder.api.rke import names
from herder.api.rke.cluster_spec import decode_spec
from herder.api.rke.kinds import BEACON, BOOTSTRAP, BOOTSTRAP_TEMPLATE, CONTROL_PLANE, RKE_CLUSTER
from herder.api.rke.names import CLUSTER_SPEC, ROLES, TEMPLATE_HASH
from herder.engine.meta.kinds import Kind, Object
from herder.sim import loop
from herder.sim.faults import NONE, ROUGH, Faults
from tests.support.builders import new_condition, new_manifest
from tests.unit.controllers.provisioning.objects import KINDS, NAME, WORKSPACE, cluster, config, pool
from tests.unit.controllers.provisioning.simulated_manager import SERVERS, WORKERS, SimulatedManager


def test_two_pools_become_objects_with_upstreams_names_hashes_and_labels() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            digests = {
                pool: hashlib.sha256(f'{NAME}-{pool}{{"image":"debian","size":"small"}}'.encode()).hexdigest()[:8]
                for pool in ("servers", "workers")
            }
            for kind in (RKE_CLUSTER, CONTROL_PLANE, CLUSTER, BEACON):
                assert await manager.names(kind) == [NAME]
            assert await manager.names(BOOTSTRAP_TEMPLATE) == ["meadow-bootstrap-template"]
            assert await manager.names(MACHINE_DEPLOYMENT) == ["meadow-servers", "meadow-workers"]
            assert await manager.names(MACHINE_HEALTH_CHECK) == ["meadow-workers"]
            assert await manager.names(KINDS.template) == [f"meadow-{pool}-{digests[pool]}" for pool in digests]
            for template in await manager.all(KINDS.template):
                assert template["metadata"]["labels"][TEMPLATE_HASH] in template["metadata"]["name"]
            roles = {
                machine["metadata"]["labels"]["rke.cattle.io/rke-machine-pool-name"]: [
                    role in machine["metadata"]["labels"] for role in ROLES
                ]
                for machine in await manager.all(MACHINE)
            }
            assert roles == {"servers": [True, True, False], "workers": [False, False, True]}

    loop.run(run(SimulatedManager()))


def test_the_objects_of_a_cluster_reference_each_other() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            provisioning = await manager.cluster()
            control_plane = await manager.get(CONTROL_PLANE, NAME)
            capi_cluster = await manager.get(CLUSTER, NAME)
            assert control_plane is not None
            assert capi_cluster is not None
            assert control_plane["spec"]["managementClusterName"] == provisioning["status"]["clusterName"]
            assert control_plane["spec"]["machineGlobalConfig"] == {"debug": True}
            assert decode_spec(control_plane["metadata"]["annotations"][CLUSTER_SPEC]) == provisioning["spec"]
            assert capi_cluster["spec"]["controlPlaneRef"] == {
                "apiGroup": "rke.cattle.io",
                "kind": "RKEControlPlane",
                "name": NAME,
            }
            assert capi_cluster["metadata"]["ownerReferences"][0]["uid"] == provisioning["metadata"]["uid"]
            management = await manager.get(MANAGEMENT_CLUSTER, provisioning["status"]["clusterName"])
            assert management is not None
            assert management["metadata"]["annotations"]["provisioning.cattle.io/administrated"] == "true"
            machine_config = await manager.get(KINDS.config, "sheds")
            assert machine_config is not None
            assert machine_config["metadata"]["ownerReferences"][0]["uid"] == provisioning["metadata"]["uid"]

    loop.run(run(SimulatedManager()))


async def generations(manager: SimulatedManager) -> dict[str, str]:
    """The generation of every generated object, to see which of them an edit changes."""
    kinds: tuple[Kind, ...] = (RKE_CLUSTER, CONTROL_PLANE, CLUSTER, BOOTSTRAP_TEMPLATE, MACHINE_DEPLOYMENT)
    found = [obj for kind in (*kinds, KINDS.template, MACHINE) for obj in await manager.all(kind)]
    return {f"{obj['kind']} {obj['metadata']['name']}": obj["metadata"]["generation"] for obj in found}


async def changed_objects(manager: SimulatedManager, before: dict[str, str]) -> list[str]:
    await asyncio.sleep(60)
    after = await generations(manager)
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def test_an_edit_of_the_configuration_changes_only_the_control_plane() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            before = await generations(manager)
            edit = {"spec": {"rkeConfig": {"machineGlobalConfig": {"debug": None, "selinux": True}}}}
            await manager.patch(PROVISIONING_CLUSTER, NAME, edit)
            assert await changed_objects(manager, before) == ["RKEControlPlane meadow"]
            control_plane = await manager.get(CONTROL_PLANE, NAME)
            assert control_plane is not None
            assert control_plane["spec"]["machineGlobalConfig"] == {"selinux": True}

    loop.run(run(SimulatedManager()))


def test_the_control_plane_has_only_the_configuration_of_the_cluster() -> None:
    """Who can write the control plane, and not the Cluster, would configure the cluster for ever."""
    added: Object = {
        "additionalManifest": "kind: ConfigMap",
        "machineGlobalConfig": {"tls-san": ["example.com"]},
        "agentEnvVars": [{"name": "A", "value": "b"}],
        "etcdSnapshotRestore": {"generation": 1, "name": "old"},
        "upgradeStrategy": {"workerConcurrency": "9"},
    }

    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()
            before = await manager.get(CONTROL_PLANE, NAME)
            assert before is not None
            assert before["spec"]["machineGlobalConfig"] == {"debug": True}
            marks = {"metadata": {"annotations": {names.NO_UPGRADE_SNAPSHOT: "true"}}}
            await manager.patch(CONTROL_PLANE, NAME, {"spec": added, **marks})

            async def is_removed() -> bool:
                found = await manager.get(CONTROL_PLANE, NAME)
                is_marked = found is not None and names.NO_UPGRADE_SNAPSHOT in annotations_of(found)
                return found is not None and found["spec"] == before["spec"] and not is_marked

            await world.until(is_removed, within=30)

    loop.run(run(SimulatedManager()))


def test_the_configuration_can_be_emptied() -> None:
    """Where the last entry of a mapping is removed, API servers leave null, which the schema of the control plane
    rejects."""
    full = {
        "machineGlobalConfig": {"selinux": True},
        "registries": {"mirrors": {"docker.io": {"endpoint": ["https://mirror.example.com"]}}},
        "chartValues": {"rke2-calico": {"installation": {"flexVolumePath": "/opt"}}},
    }
    empty = {
        "machineGlobalConfig": {},
        "registries": {"mirrors": {}},
        "chartValues": {"rke2-calico": {"installation": {}}},
    }

    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:

            async def is_reported(expected: Object) -> bool:
                control_plane = await manager.get(CONTROL_PLANE, NAME)
                return control_plane is not None and expected.items() <= control_plane["spec"].items()

            await manager.prepare()
            await manager.create(PROVISIONING_CLUSTER, cluster(**full))
            await world.until(lambda: is_reported(full), within=30)
            found = await manager.cluster()
            found["spec"]["rkeConfig"] = empty
            await world.client.update(PROVISIONING_CLUSTER.resource, found)
            await world.until(lambda: is_reported(empty), within=30)

    loop.run(run(SimulatedManager()))


def test_an_edit_of_the_infrastructure_creates_a_new_template() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            before = set(await manager.names(KINDS.template))
            await manager.patch(KINDS.config, "sheds", {"size": "large"})
            await asyncio.sleep(60)
            after = set(await manager.names(KINDS.template))
            assert after > before
            assert len(after - before) == 2
            referenced = {
                each["spec"]["template"]["spec"]["infrastructureRef"]["name"]
                for each in await manager.all(MACHINE_DEPLOYMENT)
            }
            assert referenced == after - before, "Cluster API replaces the machines"

    loop.run(run(SimulatedManager()))


async def common_fields(manager: SimulatedManager) -> list[Object | None]:
    """The common fields of the machine template of each pool."""
    return [each["spec"]["template"]["spec"].get("common") for each in await manager.all(KINDS.template)]


def test_labels_taints_and_credentials_change_templates_in_place() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            machines, templates = await manager.names(MACHINE), await manager.names(KINDS.template)
            secret = new_manifest(SECRET, "cc-shed", WORKSPACE, type="provisioning.cattle.io/cloud-credential")
            await manager.create(SECRET, secret)
            taint = {"key": "wolves", "value": "near", "effect": "NoSchedule"}
            changed = {
                **WORKERS,
                "labels": {"wool": "black"},
                "taints": [taint],
                "cloudCredentialSecretName": "cc-shed",
            }
            await manager.edit_pools(SERVERS, changed)
            await asyncio.sleep(60)
            assert await manager.names(KINDS.template) == templates
            assert await manager.names(MACHINE) == machines
            assert {"labels": {"wool": "black"}, "taints": [taint], "cloudCredentialSecretName": "cc-shed"} in (
                await common_fields(manager)
            )
            annotations = [each["metadata"].get("annotations") or {} for each in await manager.all(BOOTSTRAP)]
            assert '{"wool":"black"}' in [each.get("rke.cattle.io/labels") for each in annotations]
            await manager.edit_pools(SERVERS, {**WORKERS, "labels": {}})
            await asyncio.sleep(60)
            assert await common_fields(manager) == [None, None], "all of them can be removed again"
            annotations = [each["metadata"].get("annotations") or {} for each in await manager.all(BOOTSTRAP)]
            assert not any({"rke.cattle.io/labels", "rke.cattle.io/taints"} & set(each) for each in annotations)
            assert await manager.names(KINDS.template) == templates

    loop.run(run(SimulatedManager()))


def test_a_removed_pool_is_deleted_with_its_machines_and_health_check() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            await manager.edit_pools(SERVERS)

            async def is_pruned() -> bool:
                left = [await manager.names(kind) for kind in (MACHINE_DEPLOYMENT, MACHINE_HEALTH_CHECK)]
                return left == [["meadow-servers"], []] and await manager.is_settled(1)

            await manager.world.until(is_pruned)

    loop.run(run(SimulatedManager()))


def test_new_fields_of_a_driver_do_not_reach_existing_pools() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world:
            await manager.create_cluster()
            schema = (await manager.cluster())["spec"]["rkeConfig"]["machinePools"][0]["dynamicSchemaSpec"]
            new_field = {"spec": {"resourceFields": {"door": {"type": "string", "create": True}}}}
            await manager.world.client.patch(DYNAMIC_SCHEMA.resource, "shedconfig", new_field)
            await asyncio.sleep(5)  # until the manager has observed it
            await manager.edit_pools({**SERVERS, "displayName": "Servers"}, WORKERS, pool("lambs"))
            await manager.world.until(lambda: manager.is_settled(4))
            pools = (await manager.cluster())["spec"]["rkeConfig"]["machinePools"]
            assert [each["dynamicSchemaSpec"] == schema for each in pools] == [True, True, False]
            assert len(await manager.all(KINDS.template)) == 3

    loop.run(run(SimulatedManager()))


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
    "a credential of another namespace": (
        pool("thief", cloudCredentialSecretName="other:purse"),
        'spec.rkeConfig.machinePools[0] "thief": cloud credential other:purse is in another namespace; name one of the '
        "cluster's own, or cattle-global-data:<name>",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_an_invalid_pool_is_reported_and_generates_nothing(case: str) -> None:
    pool_spec, expected = PROBLEMS[case]

    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.prepare()
            await manager.create(PROVISIONING_CLUSTER, cluster(pool_spec))

            async def is_reported() -> bool:
                return (find(await manager.cluster(), "RKECluster") or {}).get("message") == expected

            await world.until(is_reported, within=60)
            assert await manager.names(CONTROL_PLANE) == []

    loop.run(run(SimulatedManager()))


def test_a_config_of_another_cluster_is_not_used() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()
            other = cluster(pool("workers"))
            other["metadata"]["name"] = "heath"
            await manager.create(PROVISIONING_CLUSTER, other)

            async def is_reported() -> bool:
                found = await manager.get(PROVISIONING_CLUSTER, "heath")
                return "already owned by cluster meadow" in (find(found, "RKECluster") or {}).get("message", "")

            await world.until(is_reported, within=60)

    loop.run(run(SimulatedManager()))


def test_a_cluster_continues_when_its_problem_is_fixed() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.prepare()
            await manager.create(PROVISIONING_CLUSTER, cluster(pool("workers", config="barns")))
            await world.until(lambda: _is_false(manager, "RKECluster"), within=60)
            await manager.create(KINDS.config, config("barns", image="debian"))
            await world.until(lambda: manager.is_settled(1), within=60)

    loop.run(run(SimulatedManager()))


async def _is_false(manager: SimulatedManager, type_: str) -> bool:
    return (find(await manager.cluster(), type_) or {}).get("status") == "False"


# --- status of the control plane ------------------------------------------------------------------------------------


async def report_conditions(manager: SimulatedManager, *conditions: Object) -> None:
    """Report conditions of the control plane, as the planner would."""
    await manager.patch(CONTROL_PLANE, NAME, {"status": {"conditions": [*conditions]}}, subresource="status")


def test_the_status_of_the_control_plane_reaches_both_clusters_and_the_log() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()
            namespace = (await manager.cluster())["status"]["clusterName"]
            for message in ("waiting for machines", "configuring bootstrap node(s) meadow-servers-0"):
                await report_conditions(
                    manager, new_condition("Ready", "Unknown", "Waiting", message), new_condition("Stable", "False")
                )

                async def is_reported(message: str = message) -> bool:
                    found = await manager.cluster(), await manager.get(MANAGEMENT_CLUSTER, namespace)
                    messages = [
                        (find(each, type_) or {}).get("message") for each in found for type_ in ("Updated", "Ready")
                    ]
                    log = await manager.get(CONFIG_MAP, "provisioning-log", namespace)
                    return messages == [message] * 4 and (log or {}).get("data", {}).get("last") == message

                await world.until(is_reported, within=30)
            management = await manager.get(MANAGEMENT_CLUSTER, namespace)
            assert management is not None
            assert management["status"]["readyReconciling"] is True
            log = await manager.get(CONFIG_MAP, "provisioning-log", namespace)
            assert log is not None
            lines = log["data"]["log"].splitlines()
            assert [line.split(" ", 1)[1] for line in lines] == [
                "[INFO ] waiting for machines",
                "[INFO ] configuring bootstrap node(s) meadow-servers-0",
            ]

    loop.run(run(SimulatedManager()))


def test_the_cluster_follows_the_endpoint_of_its_control_plane() -> None:
    async def run(manager: SimulatedManager) -> None:
        async with manager.world as world:
            await manager.create_cluster()

            async def endpoint(kind: Kind) -> Object | None:
                found: Object = ((await manager.get(kind, NAME)) or {})["spec"]
                return found.get("controlPlaneEndpoint")

            async def is_at(host: str) -> bool:
                return await endpoint(CLUSTER) == {"host": host, "port": 6443}

            assert await endpoint(CLUSTER) is None
            for host in ("10.0.0.7", "10.0.0.8"):
                moved = {"spec": {"controlPlaneEndpoint": {"host": host, "port": 6443}}}
                await manager.patch(CONTROL_PLANE, NAME, moved)
                await world.until(partial(is_at, host), within=30)
            assert await endpoint(RKE_CLUSTER) is None

    loop.run(run(SimulatedManager()))


# --- deletion -------------------------------------------------------------------------------------------------------

_GENERATED_KINDS = (
    RKE_CLUSTER,
    CONTROL_PLANE,
    CLUSTER,
    BEACON,
    BOOTSTRAP_TEMPLATE,
    BOOTSTRAP,
    MACHINE_DEPLOYMENT,
    MACHINE,
)


async def create_and_delete(manager: SimulatedManager) -> None:
    async with manager.world as world:
        await manager.create_cluster()
        await manager.patch(KINDS.config, "sheds", {"size": "large"})
        await asyncio.sleep(30)
        await world.client.delete(PROVISIONING_CLUSTER.resource, NAME, namespace=WORKSPACE)

        async def is_gone() -> bool:
            kinds = (
                *_GENERATED_KINDS,
                MACHINE_HEALTH_CHECK,
                KINDS.template,
                KINDS.machine,
                KINDS.config,
                PROVISIONING_CLUSTER,
            )
            left = [name for kind in (*kinds, MANAGEMENT_CLUSTER) for name in await manager.names(kind)]
            namespaces = [name for name in await manager.names(NAMESPACE) if name.startswith("c-m-")]
            return not left and not namespaces

        await world.until(is_gone)
        [log] = await archived(manager)
        assert "to delete" in log
        await manager.create(KINDS.config, config("sheds", image="debian", size="small"))
        await manager.create(PROVISIONING_CLUSTER, cluster(SERVERS))

        async def is_logged() -> bool:
            return len(await archived(manager)) == 2

        await world.until(lambda: _exists(manager, CONTROL_PLANE), within=600)
        await report_conditions(manager, new_condition("Ready", "Unknown", "Waiting", "waiting for machines"))
        await world.until(is_logged, within=600)
        assert log in await archived(manager), "the next cluster of that name has its own log"


async def _exists(manager: SimulatedManager, kind: Kind) -> bool:
    return await manager.get(kind, NAME) is not None


async def archived(manager: SimulatedManager) -> list[str]:
    """The stored logs."""
    config_maps = [each for each in await manager.all(CONFIG_MAP) if each["metadata"]["namespace"] == ARCHIVE_NAMESPACE]
    return [each["data"]["log"] for each in config_maps if "log" in each["data"]]


@pytest.mark.parametrize(("seed", "faults"), [(0, NONE), (1, ROUGH), (2, ROUGH), (3, ROUGH)])
def test_a_deleted_cluster_leaves_only_its_log(seed: int, faults: Faults) -> None:
    loop.run(create_and_delete(SimulatedManager(seed, faults)))
