"""NodeDrivers: where a driver's flags come from, what is made of them, and when its kinds may go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.flags import Flag
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.api.machines.tables import table
from herder.controllers.machines.node_drivers import FINALIZER, controller
from herder.engine.meta.kinds import Kind, Object
from herder.engine.patch import apply_merge_patch
from herder.engine.runtime.decision import Apply, Decision, Delete, EffectKey, EffectResult, Patch, Ref
from herder.engine.runtime.view import KindNotWatched, View
from tests.support.views import view_of
from tests.unit.controllers.machines.asking import answered

URL = "https://example.test/docker-machine-driver-sheep_linux-amd64.zip"
CHECKSUM = "a" * 64
OUR_FLAGS = {"process": (Flag("process-zone", "where"), Flag("process-memory", "how much"))}
FLAGS = [{"name": "sheep-region", "type": "string", "default": "hills", "env": "SHEEP_REGION", "usage": "where"}]
CONTROLLER = controller(OUR_FLAGS.get)


def built_in(name: str, **spec: Any) -> Object:
    known_driver = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)
    return _with(known_driver, spec)


def downloaded(name: str = "sheep", **spec: Any) -> Object:
    driver: Object = {
        "apiVersion": NODE_DRIVER.api_version,
        "kind": NODE_DRIVER.kind,
        "metadata": {"name": name},
        "spec": {"displayName": "sheep", "active": True, "url": URL, "checksum": CHECKSUM},
    }
    return _with(driver, spec)


def _with(driver: Object, spec: Object) -> Object:
    meta = {"finalizers": [FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z", **driver["metadata"]}
    return {**driver, "metadata": meta, "spec": {**driver["spec"], **spec}}


def marked(driver: Object, **meta: Any) -> Object:
    return {**driver, "metadata": {**driver["metadata"], **meta}}


def going(driver: Object) -> Object:
    return marked(driver, deletionTimestamp="2026-01-02T00:00:00Z")


def definitions(driver: str) -> list[Object]:
    kinds = kinds_of(driver)
    return [
        made(DEFINITION, f"{kind.plural}.{kind.group}", labels={known.DRIVER_LABEL: driver})
        for kind in (kinds.config, kinds.template, kinds.machine)
    ]


def made(kind: Kind, name: str, **meta: Any) -> Object:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **meta}}


def machine(driver: str, name: str) -> Object:
    return made(kinds_of(driver).machine, name, namespace="default")


def decided(
    driver: Object, *objects: Object, result: EffectResult | None = None, listed: list[str] | None = None
) -> Decision:
    """`result` is the driver's answer, `listed` what the server says when it is asked for objects."""
    name = driver["metadata"]["name"]
    kinds = kinds_of(known.driver_name(driver))
    followed = [kind.metadata_only() for kind in (kinds.config, kinds.template, kinds.machine)]
    key = ("driver-flags", f"NodeDriver-{name}", driver["spec"]["url"], driver["spec"].get("checksum", ""))

    def view_with(results: Mapping[EffectKey, EffectResult]) -> View:
        return view_of(CONTROLLER, name, [driver, *objects], followed=followed, results=results)

    return answered(CONTROLLER, view_with, listed, {key: result} if result is not None else {})


def applied(decision: Decision) -> dict[str, Object]:
    return {write.obj["metadata"]["name"]: write.obj for write in decision.writes if isinstance(write, Apply)}


def after(driver: Object, decision: Decision) -> Object:
    """The NodeDriver as the decision leaves it."""
    for write in decision.writes:
        if isinstance(write, Patch) and write.ref == Ref(NODE_DRIVER, driver["metadata"]["name"]):
            driver = apply_merge_patch(driver, write.patch)
    return driver


def conditions(driver: Object) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["message"]) for each in driver["status"]["conditions"]}


def statuses(driver: Object) -> dict[str, str]:
    return {type_: status for type_, (status, _) in conditions(driver).items()}


READY = {"Downloaded": "True", "Installed": "True", "Active": "True", "Inactive": "False"}


# --- where flags come from ------------------------------------------------------------------------------------------


def test_the_finalizer_comes_before_anything_is_made() -> None:
    driver = marked(built_in("process"), finalizers=[])
    decision = decided(driver)
    assert after(driver, decision)["metadata"]["finalizers"] == [FINALIZER]
    assert len(decision.writes) == 1


def test_our_own_drivers_tell_their_flags_themselves() -> None:
    driver = built_in("process")
    decision = decided(driver)
    fields = applied(decision)["processconfig"]["spec"]["resourceFields"]
    assert set(fields) == {"zone", "memory"}
    told = after(driver, decision)
    assert statuses(told) == READY
    assert told["status"]["appliedDockerMachineVersion"].startswith("herder-machine ")


def test_the_flags_of_rancher_machines_drivers_are_in_a_table() -> None:
    driver = built_in("digitalocean")
    decision = decided(driver)
    assert "accessToken" in applied(decision)["digitaloceanconfig"]["spec"]["resourceFields"]
    assert after(driver, decision)["status"]["appliedDockerMachineVersion"] == f"rancher-machine {table().version}"


def test_a_driver_of_ours_can_be_run_by_rancher_machine_with_its_flags() -> None:
    driver = marked(built_in("generic"), annotations={known.PROGRAM_ANNOTATION: "rancher-machine"})
    assert "enginePort" in applied(decided(driver))["genericconfig"]["spec"]["resourceFields"]


def test_a_driver_that_is_downloaded_is_asked() -> None:
    driver = downloaded()
    decision = decided(driver)
    (effect,) = decision.effects
    assert (effect.performer, effect.arguments) == (
        "driver-flags",
        {"url": URL, "checksum": CHECKSUM, "name": "sheep"},
    )
    assert applied(decision) == {}
    assert statuses(after(driver, decision)) == {
        "Downloaded": "Unknown",
        "Installed": "Unknown",
        "Active": "False",
        "Inactive": "False",
    }


def test_what_it_says_becomes_its_schema() -> None:
    driver = downloaded()
    decision = decided(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    assert decision.effects == ()
    assert applied(decision)["sheepconfig"]["spec"]["resourceFields"]["region"]["default"] == {"stringValue": "hills"}
    told = after(driver, decision)
    assert statuses(told) == READY
    assert (told["status"]["appliedURL"], told["status"]["appliedChecksum"]) == (URL, CHECKSUM)


def test_it_is_not_asked_again_until_its_address_changes() -> None:
    driver = downloaded()
    asked = decided(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    schema = applied(asked)["sheepconfig"]
    settled = after(driver, asked)
    again = decided(settled, schema)
    assert again.effects == ()
    assert applied(again)["sheepconfig"] == schema
    (effect,) = decided(_with(settled, {"checksum": "b" * 64}), schema).effects
    assert effect.arguments["checksum"] == "b" * 64


def test_why_it_cannot_be_asked_is_told_and_it_is_tried_again() -> None:
    driver = downloaded()
    error = "DriverUnusable: downloaded file failed sha256 checksum: correct the checksum"
    decision = decided(driver, result=EffectResult(error=error, attempts=1))
    assert decision.effects
    told = conditions(after(driver, decision))
    assert told["Downloaded"] == ("False", "downloaded file failed sha256 checksum: correct the checksum")
    assert told["Active"] == told["Downloaded"]
    assert decision.wait is not None
    assert "checksum" in decision.wait.reason


def test_the_kinds_of_a_driver_are_named_like_its_program() -> None:
    """Jobs find it under that name."""
    driver = downloaded(displayName="packet")
    decision = decided(driver, result=EffectResult({"name": "metal", "flags": FLAGS}))
    assert after(driver, decision)["spec"]["displayName"] == "metal"
    assert applied(decision) == {}


def test_a_driver_without_a_name_is_named_like_its_program() -> None:
    driver = downloaded("nd-7", displayName="")
    assert decided(driver).effects
    decision = decided(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    assert after(driver, decision)["spec"]["displayName"] == "sheep"


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (downloaded(displayName="my-driver"), "spec.displayName"),
        (downloaded(displayName="cow", url="local://", builtin=True), "has a driver cow; set spec.url"),
        (
            marked(downloaded(), annotations={known.PROGRAM_ANNOTATION: "herder-machine"}),
            "has no driver sheep; remove the annotation",
        ),
        (downloaded(displayName="noop", url="local://"), "--url cannot become a field"),
    ],
)
def test_what_is_wrong_with_a_driver_is_told(driver: Object, problem: str) -> None:
    decision = decided(driver)
    assert problem in conditions(after(driver, decision))["Installed"][1]
    assert applied(decision) == {}


def test_of_two_that_bring_the_same_driver_the_older_does() -> None:
    older, newer = downloaded("nd-1"), marked(downloaded("nd-2"), creationTimestamp="2026-01-01T00:00:05Z")
    assert decided(older, newer).effects
    decision = decided(newer, older)
    assert conditions(after(newer, decision))["Installed"][1].startswith(
        "NodeDriver nd-1 provides driver sheep already"
    )
    assert not decision.effects
    (released,) = decided(going(newer), older).writes
    assert isinstance(released, Patch)


# --- what is made ---------------------------------------------------------------------------------------------------


def test_schemas_belong_to_their_driver() -> None:
    schemas_made = applied(decided(built_in("azure")))
    for name in ("azureconfig", "azurecredentialconfig"):
        meta = schemas_made[name]["metadata"]
        assert meta["labels"] == {"io.cattle.node_driver.name": "azure"}
        assert [owner["name"] for owner in meta["ownerReferences"]] == ["azure"]


@pytest.mark.parametrize(
    ("active", "add_credential", "registered_in"),
    [
        (True, False, {"nodeconfig", "nodetemplateconfig", "credentialconfig"}),
        (False, True, {"credentialconfig"}),
        (False, False, set()),
    ],
)
def test_registries_have_what_is_offered(active: bool, add_credential: bool, registered_in: set[str]) -> None:
    decision = decided(built_in("google", active=active, addCloudCredential=add_credential))
    assert set(applied(decision)) & schemas.REGISTRY_NAMES == registered_in
    managers = {write.manager for write in decision.writes if isinstance(write, Apply) and write.manager}
    assert managers <= {"node-driver-google"}


def test_an_entry_that_is_there_is_not_written_again() -> None:
    registries = [registry.with_entry("google") for registry in schemas.REGISTRIES]
    assert not set(applied(decided(built_in("google", active=True), *registries))) & schemas.REGISTRY_NAMES


def test_user_interfaces_are_told_of_files() -> None:
    driver = built_in("digitalocean")
    told = after(driver, decided(driver))
    assert known.FIELD_HINTS in told["metadata"]["annotations"]
    assert not any(isinstance(write, Patch) and "metadata" in write.patch for write in decided(told).writes)


def test_what_stands_is_not_told_again() -> None:
    driver = built_in("process")
    told = after(driver, decided(driver))
    assert not [write for write in decided(told).writes if isinstance(write, Patch)]


# --- when kinds may go ----------------------------------------------------------------------------------------------


REGISTRIES = [registry.with_entry("process") for registry in schemas.REGISTRIES]


def removed_entries(decision: Decision) -> set[str]:
    return {
        write.ref.name for write in decision.writes if isinstance(write, Patch) and write.ref.kind == DYNAMIC_SCHEMA
    }


def test_a_driver_that_is_switched_off_leaves_the_registries() -> None:
    driver = built_in("process", active=False)
    decision = decided(driver, *REGISTRIES, *definitions("process"), listed=[])
    assert removed_entries(decision) == schemas.REGISTRY_NAMES
    assert conditions(after(driver, decision))["Inactive"][0] == "True"


def test_with_objects_of_its_kinds_it_keeps_them_and_tells_why() -> None:
    driver = built_in("process", active=False)
    objects = [machine("process", "b"), machine("process", "a")]
    decision = decided(driver, *REGISTRIES, *definitions("process"), *objects)
    assert removed_entries(decision) == set()
    status, message = conditions(after(driver, decision))["Inactive"]
    assert status == "False"
    assert message.startswith("2 objects of its kinds still exist (ProcessMachine default/a, ProcessMachine default/b)")
    assert decision.wait is not None
    assert decision.wait.reason == message


@pytest.mark.parametrize("driver", [built_in("process", active=False), going(built_in("process"))])
def test_that_there_are_none_is_only_believed_when_the_server_says_so(driver: Object) -> None:
    """Caches may be behind."""
    asking = decided(driver, *REGISTRIES, *definitions("process"))
    assert asking.writes == ()
    (question,) = asking.effects
    assert [kind.kind for kind in question.arguments["kinds"]] == [
        "ProcessMachine",
        "ProcessMachineTemplate",
        "ProcessConfig",
    ]
    told = decided(driver, *REGISTRIES, *definitions("process"), listed=["ProcessMachine default/m"])
    assert removed_entries(told) == set()
    assert "ProcessMachine default/m" in conditions(after(driver, told))["Inactive"][1]
    assert told.wake_at is not None, "it is asked again, for no cache tells when that one goes"


def test_objects_are_only_looked_for_where_their_kind_is_defined() -> None:
    view = view_of(CONTROLLER, "process", [built_in("process", active=False)])
    CONTROLLER.reconcile(view)
    view = view_of(CONTROLLER, "process", [built_in("process", active=False), *definitions("process")])
    with pytest.raises(KindNotWatched):
        CONTROLLER.reconcile(view)


def test_a_driver_that_goes_takes_its_schemas_along_and_is_then_let_go() -> None:
    driver = going(built_in("process"))
    schema = made(DYNAMIC_SCHEMA, "processconfig", labels={known.DRIVER_LABEL: "process"})
    decision = decided(driver, schema, *REGISTRIES, *definitions("process"), listed=[])
    assert removed_entries(decision) == schemas.REGISTRY_NAMES
    assert [write.ref.name for write in decision.writes if isinstance(write, Delete)] == ["processconfig"]
    assert after(driver, decision)["metadata"]["finalizers"] == []


def test_with_objects_of_its_kinds_it_stays() -> None:
    driver = going(built_in("process"))
    decision = decided(driver, *REGISTRIES, *definitions("process"), machine("process", "m"))
    told = after(driver, decision)
    assert told["metadata"]["finalizers"] == [FINALIZER]
    assert removed_entries(decision) == set()
    assert "1 object of its kinds still exists (ProcessMachine default/m)" in conditions(told)["Inactive"][1]
