"""No machines are created that could not reach the manager."""

from __future__ import annotations

import pytest

from herder.api.capi.kinds import DEFINITION, MACHINE_DEPLOYMENT
from herder.api.machines.kinds import DYNAMIC_SCHEMA, kinds_of
from herder.api.rke.sets import with_set_labels
from herder.api.settings import SERVER_URL, Settings
from herder.controllers.provisioning.cluster.controller import CONTROLLER
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Apply, Decision
from tests.support.builders import new_object, patches_of, reconcile, writes_of
from tests.unit.controllers.provisioning.objects import (
    NAME,
    WITH_SCHEMA,
    WORKSPACE,
    new_management_cluster,
    pool,
    stored_cluster,
)

LOOPBACK = "https://127.0.0.1:7443"


def decide(driver: str, server_url: str, *existing: Object) -> Decision:
    """Reconcile a cluster with one pool of machines of the driver."""
    kinds = kinds_of(driver)
    definitions = [new_object(DEFINITION, f"{kind.plural}.{kind.group}") for kind in (*kinds.all, DYNAMIC_SCHEMA)]
    workers = pool("workers", machineConfigRef={"kind": kinds.config.kind, "name": "small"}, **WITH_SCHEMA)
    objects = [stored_cluster(workers), new_object(kinds.config, "small", WORKSPACE), *definitions, *existing]
    management = new_management_cluster("c-m-abcdefgh", created_for=f"{WORKSPACE}/{NAME}")
    return reconcile(
        CONTROLLER,
        f"{WORKSPACE}/{NAME}",
        *objects,
        management,
        dynamic_kinds=(*kinds.all, DYNAMIC_SCHEMA),
        settings=Settings(flags={SERVER_URL: server_url}).get,
    )


def creates_machines(decision: Decision) -> bool:
    return any(isinstance(write, Apply) and write.kind == MACHINE_DEPLOYMENT for write in writes_of(decision))


@pytest.mark.parametrize("driver", ["local", "amazonec2"])
@pytest.mark.parametrize("server_url", [LOOPBACK, "https://[::1]:7443", "https://localhost:7443"])
def test_no_machine_is_created_that_cannot_reach_the_manager(driver: str, server_url: str) -> None:
    decision = decide(driver, server_url)
    assert not creates_machines(decision)
    assert f"server-url: {server_url} is a loopback address, which machines of driver {driver} cannot reach" in str(
        patches_of(decision)
    )


@pytest.mark.parametrize("server_url", ["https://192.0.2.1:7443", "https://manager.example.com"])
def test_machines_are_created_if_they_may_reach_the_manager(server_url: str) -> None:
    assert creates_machines(decide("local", server_url))


@pytest.mark.parametrize("driver", ["process", "shed"])
def test_machines_on_the_host_of_the_manager_use_its_loopback_address(driver: str) -> None:
    """Process machines share its network; those of drivers that users add may do so."""
    assert creates_machines(decide(driver, LOOPBACK))


def test_an_existing_pool_is_kept_whatever_the_url() -> None:
    """Its machines may reach the manager in a way that Herder does not know."""
    deployment = new_object(MACHINE_DEPLOYMENT, f"{NAME}-workers", WORKSPACE)
    assert creates_machines(decide("local", LOOPBACK, with_set_labels(deployment, WORKSPACE, NAME)))
