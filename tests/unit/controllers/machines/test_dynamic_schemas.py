"""DynamicSchemas: whose become kinds, what these look like, and when they go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.kinds import kinds_of
from herder.api.machines.tables import table_flags
from herder.controllers.machines.dynamic_schemas import CONTROLLER
from herder.engine.control.cache import Change, Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Delete, EffectKey, EffectResult, Parallel
from herder.engine.runtime.view import View
from tests.support.views import view_of
from tests.unit.controllers.machines.asking import answered

DRIVER = "exoscale"
KINDS = kinds_of(DRIVER)
REGISTRY = schemas.NODE_TEMPLATE.with_entry(DRIVER)
NODE_DRIVER = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == DRIVER)
SCHEMA = schemas.schema(f"{DRIVER}config", schemas.machine_fields(table_flags(DRIVER) or (), NODE_DRIVER))


def definition(name: str, driver: str = DRIVER) -> Object:
    meta = {"name": name, "labels": {known.DRIVER_LABEL: driver}}
    return {"apiVersion": DEFINITION.api_version, "kind": DEFINITION.kind, "metadata": meta}


DEFINITIONS = [definition(f"{kind.plural}.{kind.group}") for kind in (KINDS.config, KINDS.template, KINDS.machine)]


def decided(*objects: Object, name: str = f"{DRIVER}config", listed: list[str] | None = None) -> Decision:
    """`listed` is what the server says when it is asked for objects."""
    followed = [kind.metadata_only() for kind in (KINDS.config, KINDS.template, KINDS.machine)]

    def view_with(results: Mapping[EffectKey, EffectResult]) -> View:
        return view_of(CONTROLLER, name, objects, followed=followed, results=results)

    return answered(CONTROLLER, view_with, listed)


def applied(decision: Decision) -> dict[str, Object]:
    (together,) = decision.writes
    assert isinstance(together, Parallel)
    return {write.obj["spec"]["names"]["kind"]: write.obj for write in together.writes if isinstance(write, Apply)}


def root(definition: Object) -> Any:
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]


def test_the_schema_of_an_active_driver_becomes_three_kinds() -> None:
    made = applied(decided(SCHEMA, REGISTRY))
    assert {kind: obj["metadata"]["name"] for kind, obj in made.items()} == {
        "ExoscaleConfig": "exoscaleconfigs.rke-machine-config.cattle.io",
        "ExoscaleMachine": "exoscalemachines.rke-machine.cattle.io",
        "ExoscaleMachineTemplate": "exoscalemachinetemplates.rke-machine.cattle.io",
    }
    for definition in made.values():
        assert definition["metadata"]["labels"] == {
            "auth.cattle.io/cluster-indexed": "true",
            "cluster.x-k8s.io/v1beta1": "v1",
            "cluster.x-k8s.io/v1beta2": "v1",
            "io.cattle.node_driver.name": "exoscale",
        }


def test_a_configuration_is_flat_and_has_the_drivers_defaults() -> None:
    config = root(applied(decided(SCHEMA, REGISTRY))["ExoscaleConfig"])
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


def test_a_machine_has_no_defaults_but_what_every_machine_has() -> None:
    machine = applied(decided(SCHEMA, REGISTRY))["ExoscaleMachine"]
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


def test_a_template_holds_the_spec_of_a_machine() -> None:
    made = applied(decided(SCHEMA, REGISTRY))
    template = root(made["ExoscaleMachineTemplate"])["spec"]["properties"]
    assert template["template"]["properties"]["spec"] == root(made["ExoscaleMachine"])["spec"]
    assert template["clusterName"]["type"] == "string"


@pytest.mark.parametrize("name", ["nodeconfig", "nodetemplateconfig", "credentialconfig", "cluster"])
def test_registries_and_others_have_no_kinds(name: str) -> None:
    assert decided(SCHEMA, REGISTRY, name=name) == Decision()


def test_the_schema_of_a_driver_that_is_not_active_has_none() -> None:
    assert decided(SCHEMA) == Decision()


def test_a_field_of_an_unknown_type_is_told_and_keeps_the_kinds_as_they_are() -> None:
    spoiled = schemas.schema(f"{DRIVER}config", {"size": {"type": "map[json]"}})
    decision = decided(spoiled, REGISTRY, *DEFINITIONS)
    assert decision.writes == ()
    assert decision.wait is not None
    assert 'type "map[json]" is not one of' in decision.wait.reason


@pytest.mark.parametrize("objects", [[SCHEMA], [REGISTRY], []])
def test_kinds_go_when_the_driver_is_not_active_or_gone(objects: list[Object]) -> None:
    assert decided(*objects, *DEFINITIONS).writes == (), "the server is asked first"
    (together,) = decided(*objects, *DEFINITIONS, listed=[]).writes
    assert isinstance(together, Parallel)
    assert all(isinstance(write, Delete) for write in together.writes)
    assert len(together.writes) == 3


@pytest.mark.parametrize("kind", [KINDS.config, KINDS.template, KINDS.machine])
def test_not_while_there_is_an_object_of_any_of_them(kind: Any) -> None:
    meta = {"name": "one", "namespace": "default"}
    one = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta}
    decision = decided(SCHEMA, *DEFINITIONS, one)
    assert decision.writes == ()
    assert decision.wait is not None
    assert f"1 object of its kinds still exists ({kind.kind} default/one)" in decision.wait.reason


def test_not_while_the_server_has_objects_that_no_cache_has() -> None:
    decision = decided(SCHEMA, *DEFINITIONS, listed=["ExoscaleMachine default/new"])
    assert decision.writes == ()
    assert decision.wait is not None
    assert "ExoscaleMachine default/new" in decision.wait.reason
    assert decision.wake_at is not None


def test_definitions_of_others_are_left_alone_whatever_their_label_says() -> None:
    assert (
        decided(definition("sheep.example.com"), definition(DEFINITIONS[0]["metadata"]["name"], "azure")) == Decision()
    )


def test_a_change_of_the_registry_concerns_the_drivers_in_it() -> None:
    (watch,) = [each for each in CONTROLLER.watches if each.kind == CONTROLLER.kind]
    change = Change(Key("", "nodetemplateconfig"), None, REGISTRY)
    assert watch.affected(change) == [Key("", "exoscaleconfig")]


def test_the_last_object_that_goes_sets_it_off() -> None:
    assert CONTROLLER.dynamic_watches is not None
    machine = {"apiVersion": KINDS.machine.api_version, "kind": KINDS.machine.kind, "metadata": {"name": "m"}}
    other = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    key = Key("default", "m")
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, machine, None)) == [Key("", "exoscaleconfig")]
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, None, machine)) == []
    assert CONTROLLER.dynamic_watches.affected(KINDS.machine, Change(key, other, None)) == []
