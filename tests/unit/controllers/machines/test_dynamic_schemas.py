"""DynamicSchemas: which of them become kinds, what these contain, and when they are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION, SECRET
from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.kinds import kinds_of
from herder.api.machines.tables import table_flags
from herder.controllers.machines.dynamic_schemas import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Delete, Parallel
from tests.support.builders import new_object
from tests.unit.controllers.machines.listings import reconcile_with_listing

DRIVER = "exoscale"
KINDS = kinds_of(DRIVER)
REGISTRY = schemas.NODE_TEMPLATE.with_entry(DRIVER)
NODE_DRIVER = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == DRIVER)
SCHEMA = schemas.schema(f"{DRIVER}config", schemas.machine_fields(table_flags(DRIVER) or (), NODE_DRIVER))


def definition(name: str, driver: str = DRIVER) -> Object:
    return new_object(DEFINITION, name, labels={known.DRIVER_LABEL: driver})


DEFINITIONS = [definition(f"{kind.plural}.{kind.group}") for kind in (KINDS.config, KINDS.template, KINDS.machine)]


def decide(*objects: Object, name: str = f"{DRIVER}config", listed: list[str] | None = None) -> Decision:
    """`listed` are the objects that the API server lists."""
    dynamic_kinds = [kind.metadata_only() for kind in (KINDS.config, KINDS.template, KINDS.machine)]
    return reconcile_with_listing(CONTROLLER, name, *objects, listed=listed, dynamic_kinds=dynamic_kinds)


def applied(decision: Decision) -> dict[str, Object]:
    (parallel,) = decision.writes
    assert isinstance(parallel, Parallel)
    return {write.obj["spec"]["names"]["kind"]: write.obj for write in parallel.writes if isinstance(write, Apply)}


def root(definition: Object) -> Any:
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]


def test_the_schema_of_an_active_driver_becomes_three_kinds() -> None:
    definitions = applied(decide(SCHEMA, REGISTRY))
    assert {kind: obj["metadata"]["name"] for kind, obj in definitions.items()} == {
        "ExoscaleConfig": "exoscaleconfigs.rke-machine-config.cattle.io",
        "ExoscaleMachine": "exoscalemachines.rke-machine.cattle.io",
        "ExoscaleMachineTemplate": "exoscalemachinetemplates.rke-machine.cattle.io",
    }
    for definition in definitions.values():
        assert definition["metadata"]["labels"] == {
            "auth.cattle.io/cluster-indexed": "true",
            "cluster.x-k8s.io/v1beta1": "v1",
            "cluster.x-k8s.io/v1beta2": "v1",
            "io.cattle.node_driver.name": "exoscale",
        }


def test_a_config_kind_is_flat_and_has_the_defaults_of_the_driver() -> None:
    config = root(applied(decide(SCHEMA, REGISTRY))["ExoscaleConfig"])
    assert config["diskSize"] == {
        "type": "string",
        "nullable": True,
        "default": "50",
        "description": "--exoscale-disk-size (environment variable EXOSCALE_DISK_SIZE)",
    }
    assert config["sshUser"]["default"] == ""
    assert config["securityGroup"]["default"] == ["rancher-machine"]
    assert config["securityGroup"]["items"] == {"type": "string", "nullable": True}
    assert "default" not in config["affinityGroup"]
    assert "common" not in config


def test_a_machine_kind_has_no_defaults_and_the_common_fields() -> None:
    machine = applied(decide(SCHEMA, REGISTRY))["ExoscaleMachine"]
    spec, status = root(machine)["spec"]["properties"], root(machine)["status"]["properties"]
    assert not [name for name, field in spec.items() if "default" in field]
    assert set(spec["common"]["properties"]) == {"labels", "taints", "cloudCredentialSecretName"}
    assert {"providerID", "diskSize"} <= set(spec)
    assert set(status) == {
        "addresses",
        "cloudCredentialSecretName",
        "conditions",
        "driverHash",
        "driverUrl",
        "failureMessage",
        "failureReason",
        "initialization",
        "jobName",
        "ready",
    }
    assert machine["spec"]["versions"][0]["subresources"] == {"status": {}}


def test_a_template_contains_the_spec_of_a_machine() -> None:
    definitions = applied(decide(SCHEMA, REGISTRY))
    template = root(definitions["ExoscaleMachineTemplate"])["spec"]["properties"]
    assert template["template"]["properties"]["spec"] == root(definitions["ExoscaleMachine"])["spec"]
    assert template["clusterName"]["type"] == "string"


@pytest.mark.parametrize("name", ["nodeconfig", "nodetemplateconfig", "credentialconfig", "cluster"])
def test_other_schemas_have_no_kinds(name: str) -> None:
    assert decide(SCHEMA, REGISTRY, name=name) == Decision()


def test_the_schema_of_an_inactive_driver_has_no_kinds() -> None:
    assert decide(SCHEMA) == Decision()


def test_a_field_of_an_unknown_type_is_reported_and_changes_no_kind() -> None:
    invalid = schemas.schema(f"{DRIVER}config", {"size": {"type": "map[json]"}})
    decision = decide(invalid, REGISTRY, *DEFINITIONS)
    assert decision.writes == ()
    assert decision.wait is not None
    assert 'type "map[json]" is not one of' in decision.wait.reason


@pytest.mark.parametrize("objects", [[SCHEMA], [REGISTRY], []])
def test_kinds_of_an_inactive_or_deleted_driver_are_deleted(objects: list[Object]) -> None:
    assert decide(*objects, *DEFINITIONS).writes == (), "the objects are listed first"
    (parallel,) = decide(*objects, *DEFINITIONS, listed=[]).writes
    assert isinstance(parallel, Parallel)
    assert all(isinstance(write, Delete) for write in parallel.writes)
    assert len(parallel.writes) == 3


@pytest.mark.parametrize("kind", [KINDS.config, KINDS.template, KINDS.machine])
def test_kinds_stay_while_an_object_of_any_of_them_exists(kind: Any) -> None:
    decision = decide(SCHEMA, *DEFINITIONS, new_object(kind, "one", "default"))
    assert decision.writes == ()
    assert decision.wait is not None
    assert f"1 object of its kinds still exists ({kind.kind} default/one)" in decision.wait.reason


def test_kinds_stay_while_the_api_server_has_objects_that_no_cache_has() -> None:
    decision = decide(SCHEMA, *DEFINITIONS, listed=["ExoscaleMachine default/new"])
    assert decision.writes == ()
    assert decision.wait is not None
    assert "ExoscaleMachine default/new" in decision.wait.reason
    assert decision.wake_at is not None


def test_definitions_of_others_are_ignored_whatever_their_label() -> None:
    assert (
        decide(definition("sheep.example.com"), definition(DEFINITIONS[0]["metadata"]["name"], "azure")) == Decision()
    )


def test_a_change_of_the_registry_wakes_the_drivers_in_it() -> None:
    (watch,) = [each for each in CONTROLLER.watches if each.kind == CONTROLLER.kind]
    change = Change(Key("", "nodetemplateconfig"), None, REGISTRY)
    assert watch.affected(change) == [Key("", "exoscaleconfig")]


def test_the_deletion_of_the_last_object_wakes_the_controller() -> None:
    assert CONTROLLER.dynamic_watches is not None
    machine, other = new_object(KINDS.machine, "m", "default"), new_object(SECRET, "s", "default")
    key = Key("default", "m")
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, machine, None)) == [Key("", "exoscaleconfig")]
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, None, machine)) == []
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, other, None)) == []
