from __future__ import annotations

import pytest

from herder.engine.apiserver.admission.chain import CREATE, DELETE, UPDATE, Attributes
from herder.engine.apiserver.admission.namespaces import NamespaceLifecycle
from herder.engine.apiserver.admission.objects import Objects
from herder.engine.meta.errors import Forbidden, NotFound
from herder.engine.meta.kinds import Object
from tests.unit.engine.apiserver.auth.fake_cluster import ALICE, FakeCluster
from tests.unit.engine.apiserver.resources import resource

ACTIVE, TERMINATING = {"phase": "Active"}, {"phase": "Terminating"}


async def write(
    cluster: FakeCluster, operation: str, plural: str, namespace: str = "", *, name: str = "x", group: str = ""
) -> None:
    obj: Object = {"metadata": {"name": name}}
    served = resource(plural, group=group, namespaced=bool(namespace))
    attributes = Attributes(operation, served, "v1", ALICE, name=name, namespace=namespace, obj=obj)
    await NamespaceLifecycle(Objects(cluster.store)).admit(attributes)


async def test_an_active_namespace_accepts_objects(cluster: FakeCluster) -> None:
    await cluster.put("namespaces", "team", status=ACTIVE)
    await write(cluster, CREATE, "configmaps", "team")


async def test_a_missing_namespace_is_not_found(cluster: FakeCluster) -> None:
    for operation in (CREATE, UPDATE):
        with pytest.raises(NotFound) as refusal:
            await write(cluster, operation, "configmaps", "nope")
        assert refusal.value.message == 'namespaces "nope" not found'
        assert refusal.value.details == {"name": "nope", "kind": "namespaces"}


async def test_a_terminating_namespace_rejects_new_objects(cluster: FakeCluster) -> None:
    await cluster.put("namespaces", "team", status=TERMINATING)
    with pytest.raises(Forbidden) as refusal:
        await write(cluster, CREATE, "configmaps", "team")
    assert refusal.value.message == (
        'configmaps "x" is forbidden: unable to create new content in namespace team because it is being terminated'
    )
    assert refusal.value.details == {
        "name": "x",
        "kind": "configmaps",
        "causes": [
            {
                "reason": "NamespaceTerminating",
                "message": "namespace team is being terminated",
                "field": "metadata.namespace",
            }
        ],
    }
    await write(cluster, UPDATE, "configmaps", "team")
    await write(cluster, DELETE, "configmaps", "team")


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_some_namespaces_cannot_be_deleted(cluster: FakeCluster, name: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        await write(cluster, DELETE, "namespaces", name=name)
    assert refusal.value.message == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
    await write(cluster, UPDATE, "namespaces", name=name)
    await write(cluster, DELETE, "namespaces", name="kube-node-lease")


async def test_cluster_scoped_objects_and_access_reviews_need_no_namespace(cluster: FakeCluster) -> None:
    await write(cluster, CREATE, "nodes")
    await write(cluster, CREATE, "localsubjectaccessreviews", "nope", group="authorization.k8s.io")
