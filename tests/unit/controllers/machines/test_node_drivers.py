"""NodeDrivers: where the flags of a driver come from, what is generated from them, and when its kinds may be
deleted."""

from __future__ import annotations

from typing import Any

import pytest

from herder.api.capi.kinds import DEFINITION
from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.flags import Flag
from herder.api.machines.drivers.registered import default_node_drivers
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.api.machines.tables import table
from herder.controllers.machines.node_drivers import FINALIZER, controller
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision, Delete, EffectResult, Patch
from herder.engine.runtime.view import KindNotWatched
from tests.support.builders import DELETED_AT, new_object, patched, patches_of
from tests.support.views import view_of
from tests.unit.controllers.machines.listings import reconcile_with_listing

URL = "https://example.test/docker-machine-driver-sheep_linux-amd64.zip"
CHECKSUM = "a" * 64
NATIVE_FLAGS = {"process": (Flag("process-zone", "where"), Flag("process-memory", "how much"))}
FLAGS = [{"name": "sheep-region", "type": "string", "default": "hills", "env": "SHEEP_REGION", "usage": "where"}]
CONTROLLER = controller(NATIVE_FLAGS.get)


def built_in(name: str, **spec: Any) -> Object:
    known_driver = next(driver for driver in default_node_drivers() if driver["metadata"]["name"] == name)
    return _with(known_driver, spec)


def downloaded(name: str = "sheep", **spec: Any) -> Object:
    fields = {"displayName": "sheep", "active": True, "url": URL, "checksum": CHECKSUM}
    return _with(new_object(NODE_DRIVER, name, spec=fields), spec)


def _with(driver: Object, spec: Object) -> Object:
    meta = {"finalizers": [FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z", **driver["metadata"]}
    return {**driver, "metadata": meta, "spec": {**driver["spec"], **spec}}


def with_metadata(driver: Object, **meta: Any) -> Object:
    return {**driver, "metadata": {**driver["metadata"], **meta}}


def deleting(driver: Object) -> Object:
    return with_metadata(driver, deletionTimestamp=DELETED_AT)


def definitions(driver: str) -> list[Object]:
    kinds = kinds_of(driver)
    return [
        new_object(DEFINITION, f"{kind.plural}.{kind.group}", labels={known.DRIVER_LABEL: driver})
        for kind in (kinds.config, kinds.template, kinds.machine)
    ]


def machine(driver: str, name: str) -> Object:
    return new_object(kinds_of(driver).machine, name, "default")


def decide(
    driver: Object, *objects: Object, result: EffectResult | None = None, listed: list[str] | None = None
) -> Decision:
    """`result` is the answer of the driver; `listed` are the objects that the API server lists."""
    name = driver["metadata"]["name"]
    kinds = kinds_of(known.driver_name(driver))
    dynamic_kinds = [kind.metadata_only() for kind in (kinds.config, kinds.template, kinds.machine)]
    key = ("driver-flags", f"NodeDriver-{name}", driver["spec"]["url"], driver["spec"].get("checksum", ""))
    results = {key: result} if result is not None else {}
    return reconcile_with_listing(
        CONTROLLER, name, driver, *objects, listed=listed, results=results, dynamic_kinds=dynamic_kinds
    )


def applied(decision: Decision) -> dict[str, Object]:
    return {write.obj["metadata"]["name"]: write.obj for write in decision.writes if isinstance(write, Apply)}


def conditions(driver: Object) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["message"]) for each in driver["status"]["conditions"]}


def statuses(driver: Object) -> dict[str, str]:
    return {type_: status for type_, (status, _) in conditions(driver).items()}


READY = {"Downloaded": "True", "Installed": "True", "Active": "True", "Inactive": "False"}


# --- sources of flags -----------------------------------------------------------------------------------------------


def test_the_finalizer_is_set_before_anything_is_created() -> None:
    driver = with_metadata(built_in("process"), finalizers=[])
    decision = decide(driver)
    assert patched(driver, decision)["metadata"]["finalizers"] == [FINALIZER]
    assert len(decision.writes) == 1


def test_native_drivers_provide_their_own_flags() -> None:
    driver = built_in("process")
    decision = decide(driver)
    fields = applied(decision)["processconfig"]["spec"]["resourceFields"]
    assert set(fields) == {"zone", "memory"}
    updated = patched(driver, decision)
    assert statuses(updated) == READY
    assert updated["status"]["appliedDockerMachineVersion"].startswith("herder-machine ")


def test_the_flags_of_rancher_machine_drivers_are_in_a_table() -> None:
    driver = built_in("digitalocean")
    decision = decide(driver)
    assert "accessToken" in applied(decision)["digitaloceanconfig"]["spec"]["resourceFields"]
    assert patched(driver, decision)["status"]["appliedDockerMachineVersion"] == f"rancher-machine {table().version}"


def test_a_native_driver_can_be_run_by_rancher_machine_with_its_flags() -> None:
    driver = with_metadata(built_in("generic"), annotations={known.PROGRAM_ANNOTATION: "rancher-machine"})
    assert "enginePort" in applied(decide(driver))["genericconfig"]["spec"]["resourceFields"]


def test_a_downloaded_driver_is_asked_for_its_flags() -> None:
    driver = downloaded()
    decision = decide(driver)
    (effect,) = decision.effects
    assert (effect.performer, effect.arguments) == (
        "driver-flags",
        {"url": URL, "checksum": CHECKSUM, "name": "sheep"},
    )
    assert applied(decision) == {}
    assert statuses(patched(driver, decision)) == {
        "Downloaded": "Unknown",
        "Installed": "Unknown",
        "Active": "False",
        "Inactive": "False",
    }


def test_the_flags_of_a_driver_become_its_schema() -> None:
    driver = downloaded()
    decision = decide(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    assert decision.effects == ()
    assert applied(decision)["sheepconfig"]["spec"]["resourceFields"]["region"]["default"] == {"stringValue": "hills"}
    updated = patched(driver, decision)
    assert statuses(updated) == READY
    assert (updated["status"]["appliedURL"], updated["status"]["appliedChecksum"]) == (URL, CHECKSUM)


def test_a_driver_is_not_asked_again_until_its_url_or_checksum_changes() -> None:
    driver = downloaded()
    first = decide(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    schema = applied(first)["sheepconfig"]
    updated = patched(driver, first)
    again = decide(updated, schema)
    assert again.effects == ()
    assert applied(again)["sheepconfig"] == schema
    (effect,) = decide(_with(updated, {"checksum": "b" * 64}), schema).effects
    assert effect.arguments["checksum"] == "b" * 64


def test_a_failed_download_is_reported_and_retried() -> None:
    driver = downloaded()
    error = "DriverUnusable: downloaded file failed sha256 checksum: correct the checksum"
    decision = decide(driver, result=EffectResult(error=error, attempts=1))
    assert decision.effects
    reported = conditions(patched(driver, decision))
    assert reported["Downloaded"] == ("False", "downloaded file failed sha256 checksum: correct the checksum")
    assert reported["Active"] == reported["Downloaded"]
    assert decision.wait is not None
    assert "checksum" in decision.wait.reason


def test_the_kinds_of_a_driver_are_named_after_its_program() -> None:
    """Jobs find the program by that name."""
    driver = downloaded(displayName="packet")
    decision = decide(driver, result=EffectResult({"name": "metal", "flags": FLAGS}))
    assert patched(driver, decision)["spec"]["displayName"] == "metal"
    assert applied(decision) == {}


def test_a_driver_without_a_name_is_named_after_its_program() -> None:
    driver = downloaded("nd-7", displayName="")
    assert decide(driver).effects
    decision = decide(driver, result=EffectResult({"name": "sheep", "flags": FLAGS}))
    assert patched(driver, decision)["spec"]["displayName"] == "sheep"


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (downloaded(displayName="my-driver"), "spec.displayName"),
        (downloaded(displayName="cow", url="local://", builtin=True), "has a driver cow; set spec.url"),
        (
            with_metadata(downloaded(), annotations={known.PROGRAM_ANNOTATION: "herder-machine"}),
            "has no driver sheep; remove the annotation",
        ),
        (downloaded(displayName="noop", url="local://"), "--url cannot become a field"),
    ],
)
def test_an_invalid_driver_is_reported(driver: Object, problem: str) -> None:
    decision = decide(driver)
    assert problem in conditions(patched(driver, decision))["Installed"][1]
    assert applied(decision) == {}


def test_the_older_of_two_node_drivers_provides_the_driver() -> None:
    older, newer = downloaded("nd-1"), with_metadata(downloaded("nd-2"), creationTimestamp="2026-01-01T00:00:05Z")
    assert decide(older, newer).effects
    decision = decide(newer, older)
    assert conditions(patched(newer, decision))["Installed"][1].startswith(
        "NodeDriver nd-1 provides driver sheep already"
    )
    assert not decision.effects
    (released,) = decide(deleting(newer), older).writes
    assert isinstance(released, Patch)


# --- generated objects ----------------------------------------------------------------------------------------------


def test_schemas_are_owned_by_their_driver() -> None:
    schemas_made = applied(decide(built_in("azure")))
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
def test_registries_contain_the_active_drivers_and_credentials(
    active: bool, add_credential: bool, registered_in: set[str]
) -> None:
    decision = decide(built_in("google", active=active, addCloudCredential=add_credential))
    assert set(applied(decision)) & schemas.REGISTRY_NAMES == registered_in
    managers = {write.manager for write in decision.writes if isinstance(write, Apply) and write.manager}
    assert managers <= {"node-driver-google"}


def test_an_existing_registry_entry_is_not_written_again() -> None:
    registries = [registry.with_entry("google") for registry in schemas.REGISTRIES]
    assert not set(applied(decide(built_in("google", active=True), *registries))) & schemas.REGISTRY_NAMES


def test_field_hints_for_files_are_annotated() -> None:
    driver = built_in("digitalocean")
    updated = patched(driver, decide(driver))
    assert known.FIELD_HINTS in updated["metadata"]["annotations"]
    assert not any(isinstance(write, Patch) and "metadata" in write.patch for write in decide(updated).writes)


def test_an_unchanged_status_is_not_written_again() -> None:
    driver = built_in("process")
    updated = patched(driver, decide(driver))
    assert not [write for write in decide(updated).writes if isinstance(write, Patch)]


# --- deletion of kinds ----------------------------------------------------------------------------------------------


REGISTRIES = [registry.with_entry("process") for registry in schemas.REGISTRIES]


def removed_entries(decision: Decision) -> set[str]:
    return {patch.ref.name for patch in patches_of(decision, DYNAMIC_SCHEMA)}


def test_a_deactivated_driver_is_removed_from_the_registries() -> None:
    driver = built_in("process", active=False)
    decision = decide(driver, *REGISTRIES, *definitions("process"), listed=[])
    assert removed_entries(decision) == schemas.REGISTRY_NAMES
    assert conditions(patched(driver, decision))["Inactive"][0] == "True"


def test_a_deactivated_driver_stays_while_objects_of_its_kinds_exist() -> None:
    driver = built_in("process", active=False)
    objects = [machine("process", "b"), machine("process", "a")]
    decision = decide(driver, *REGISTRIES, *definitions("process"), *objects)
    assert removed_entries(decision) == set()
    status, message = conditions(patched(driver, decision))["Inactive"]
    assert status == "False"
    assert message.startswith("2 objects of its kinds still exist (ProcessMachine default/a, ProcessMachine default/b)")
    assert decision.wait is not None
    assert decision.wait.reason == message


@pytest.mark.parametrize("driver", [built_in("process", active=False), deleting(built_in("process"))])
def test_that_no_objects_exist_is_confirmed_by_the_api_server(driver: Object) -> None:
    """Caches may be stale."""
    listing = decide(driver, *REGISTRIES, *definitions("process"))
    assert listing.writes == ()
    (effect,) = listing.effects
    assert [kind.kind for kind in effect.arguments["kinds"]] == [
        "ProcessMachine",
        "ProcessMachineTemplate",
        "ProcessConfig",
    ]
    decision = decide(driver, *REGISTRIES, *definitions("process"), listed=["ProcessMachine default/m"])
    assert removed_entries(decision) == set()
    assert "ProcessMachine default/m" in conditions(patched(driver, decision))["Inactive"][1]
    assert decision.wake_at is not None, "the objects are listed again, because no cache reports their deletion"


def test_objects_are_listed_only_if_their_kind_is_defined() -> None:
    view = view_of(CONTROLLER, "process", [built_in("process", active=False)])
    CONTROLLER.reconcile(view)
    view = view_of(CONTROLLER, "process", [built_in("process", active=False), *definitions("process")])
    with pytest.raises(KindNotWatched):
        CONTROLLER.reconcile(view)


def test_a_deleted_driver_is_released_after_its_schemas_are_deleted() -> None:
    driver = deleting(built_in("process"))
    schema = new_object(DYNAMIC_SCHEMA, "processconfig", labels={known.DRIVER_LABEL: "process"})
    decision = decide(driver, schema, *REGISTRIES, *definitions("process"), listed=[])
    assert removed_entries(decision) == schemas.REGISTRY_NAMES
    assert [write.ref.name for write in decision.writes if isinstance(write, Delete)] == ["processconfig"]
    assert patched(driver, decision)["metadata"]["finalizers"] == []


def test_a_deleted_driver_stays_while_objects_of_its_kinds_exist() -> None:
    driver = deleting(built_in("process"))
    decision = decide(driver, *REGISTRIES, *definitions("process"), machine("process", "m"))
    updated = patched(driver, decision)
    assert updated["metadata"]["finalizers"] == [FINALIZER]
    assert removed_entries(decision) == set()
    assert "1 object of its kinds still exists (ProcessMachine default/m)" in conditions(updated)["Inactive"][1]
