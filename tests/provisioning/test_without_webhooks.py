"""`herder run --no-webhooks` provisions: the controllers apply the defaults to the objects that they create."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from herder.api.capi.kinds import MACHINE_DEPLOYMENT
from herder.api.capi.names import CLUSTER_NAME, DEPLOYMENT_NAME
from herder.api.management.kinds import PROVISIONING_CLUSTER
from tests.support.capi import condition_status, none_left
from tests.support.manager.provisioned import PROCESS, ManagerSite, real_site

SERVER = {"etcdRole": True, "controlPlaneRole": True, "workerRole": True, "quantity": 1}
WORKER = {"workerRole": True}  # one machine, as with webhooks


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ManagerSite]:
    async with real_site(tmp_path_factory.mktemp("real"), webhooks=False) as running:
        yield running


async def test_a_cluster_is_provisioned_and_deleted(site: ManagerSite) -> None:
    cluster = await site.create_cluster("meadow", SERVER, WORKER)
    await cluster.wait()
    for deployment in await cluster.all(MACHINE_DEPLOYMENT):
        selected = {CLUSTER_NAME: "meadow", DEPLOYMENT_NAME: deployment["metadata"]["name"]}
        assert deployment["spec"]["selector"] == {"matchLabels": selected}
    await cluster.delete_and_wait(PROCESS.machine)
    await cluster.wait_until(PROCESS.config, none_left)


async def test_a_cluster_that_was_never_generated_leaves_no_machine_config(site: ManagerSite) -> None:
    cluster = await site.create_cluster("heath", {**SERVER, "cloudCredentialSecretName": "missing"})
    await cluster.wait_until(
        PROVISIONING_CLUSTER, lambda found: any(condition_status(each, "Stalled") == "True" for each in found)
    )
    await cluster.delete_and_wait(PROCESS.machine)
    await cluster.wait_until(PROCESS.config, none_left)
