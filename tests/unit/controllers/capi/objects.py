"""Objects that the tests of MachineSets and MachineDeployments share: a Cluster, and templates of test providers."""

from __future__ import annotations

from typing import Any

from herder.api.capi.kinds import CLUSTER
from herder.api.capi.names import CLUSTER_NAME
from herder.engine.meta.kinds import Kind, Object
from tests.support.builders import new_definition, new_manifest, new_object, object_reference, owner_reference

NAMESPACE = "default"
INFRA = Kind("infrastructure.example.io", "v1", "TestMachine", "testmachines")
INFRA_TEMPLATE = Kind("infrastructure.example.io", "v1", "TestMachineTemplate", "testmachinetemplates")
BOOTSTRAP = Kind("bootstrap.example.io", "v1", "TestConfig", "testconfigs")
BOOTSTRAP_TEMPLATE = Kind("bootstrap.example.io", "v1", "TestConfigTemplate", "testconfigtemplates")
CONTROL_PLANE = Kind("controlplane.example.io", "v1", "TestControlPlane", "testcontrolplanes")
PROVIDER_KINDS = (INFRA, INFRA_TEMPLATE, BOOTSTRAP, BOOTSTRAP_TEMPLATE, CONTROL_PLANE)

CLUSTER_LABELS = {CLUSTER_NAME: "herd"}
CLUSTER_OWNER = owner_reference(CLUSTER, "herd", controller=False)


def cluster(**spec: Any) -> Object:
    return new_object(CLUSTER, "herd", NAMESPACE, spec=spec)


def provider_object(kind: Kind, name: str, *, spec: Object | None = None, **options: Any) -> Object:
    """An object of a provider, to which the server gives a UID; `options` are those of `new_object`."""
    return new_manifest(kind, name, NAMESPACE, spec=spec or {}, **options)


def template(kind: Kind, name: str, **spec: Any) -> Object:
    """A template of bootstrap or infrastructure objects."""
    return provider_object(kind, name, spec={"template": {"metadata": {"labels": {"from": "template"}}, "spec": spec}})


def machine_template(labels: dict[str, str], **spec: Any) -> Object:
    """The `spec.template` of a MachineSet or MachineDeployment."""
    return {
        "metadata": {"labels": labels},
        "spec": {
            "clusterName": "herd",
            "bootstrap": {"configRef": object_reference(BOOTSTRAP_TEMPLATE, "boot")},
            "infrastructureRef": object_reference(INFRA_TEMPLATE, "infra"),
            **spec,
        },
    }


def cluster_with_templates() -> list[Object]:
    """A Cluster, both templates, and the definitions of all provider kinds."""
    return [
        cluster(),
        template(INFRA_TEMPLATE, "infra", size=3),
        template(BOOTSTRAP_TEMPLATE, "boot"),
        *map(new_definition, PROVIDER_KINDS),
    ]
