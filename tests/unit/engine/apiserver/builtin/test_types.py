"""JSON decoding like Go: kube-apiserver's messages for mismatches, and its canonical form for values."""

from __future__ import annotations

from typing import Any

import pytest

from herder.engine.apiserver.builtin import DEFINITIONS, BuiltinType, definitions, resources
from herder.engine.apiserver.registry.resources import Registry
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import GroupVersionKind

DEPLOYMENT = BuiltinType(GroupVersionKind("apps", "v1", "Deployment"))
SECRET = BuiltinType(GroupVersionKind("", "v1", "Secret"))
CONFIG = BuiltinType(GroupVersionKind("", "v1", "ConfigMap"))
LEASE = BuiltinType(GroupVersionKind("coordination.k8s.io", "v1", "Lease"))
EVENT = BuiltinType(GroupVersionKind("", "v1", "Event"))
QUOTA = BuiltinType(GroupVersionKind("", "v1", "ResourceQuota"))
CRD = BuiltinType(GroupVersionKind("apiextensions.k8s.io", "v1", "CustomResourceDefinition"))


def _spec(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def _pod(**spec: Any) -> dict[str, Any]:
    return _spec(template={"spec": spec})


_FIELD = "json: cannot unmarshal {} into Go struct field {} of type {}"


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (_spec(replicas="x"), _FIELD.format("string", "DeploymentSpec.spec.replicas", "int32")),
        (_spec(replicas=1.5), _FIELD.format("number 1.5", "DeploymentSpec.spec.replicas", "int32")),
        (_spec(replicas=3000000000), _FIELD.format("number 3000000000", "DeploymentSpec.spec.replicas", "int32")),
        (_spec(replicas=True), _FIELD.format("bool", "DeploymentSpec.spec.replicas", "int32")),
        (_spec(selector=[]), _FIELD.format("array", "DeploymentSpec.spec.selector", "v1.LabelSelector")),
        (_spec(paused=1), _FIELD.format("number", "DeploymentSpec.spec.paused", "bool")),
        (_pod(containers={}), _FIELD.format("object", "PodSpec.spec.template.spec.containers", "[]v1.Container")),
        (
            _pod(containers=[{"name": 1}]),
            _FIELD.format("number", "Container.spec.template.spec.containers.name", "string"),
        ),
        (
            _pod(restartPolicy=1),
            _FIELD.format("number", "PodSpec.spec.template.spec.restartPolicy", "v1.RestartPolicy"),
        ),
        (
            _pod(containers=[{"resources": {"limits": []}}]),
            _FIELD.format(
                "array", "ResourceRequirements.spec.template.spec.containers.resources.limits", "v1.ResourceList"
            ),
        ),
        (
            _pod(volumes=[{"secret": {"defaultMode": "x"}}]),
            _FIELD.format(
                "string", "SecretVolumeSource.spec.template.spec.volumes.VolumeSource.secret.defaultMode", "int32"
            ),
        ),
        (
            _pod(containers=[{"livenessProbe": {"httpGet": {"port": {}}}}]),
            _FIELD.format(
                "object",
                "HTTPGetAction.spec.template.spec.containers.livenessProbe.ProbeHandler.httpGet.port",
                "int32",
            ),
        ),
        (
            _pod(containers=[{"resources": {"limits": {"cpu": "abc"}}}]),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ({"metadata": {"labels": {"a": 1}}}, _FIELD.format("number", "ObjectMeta.metadata.labels", "string")),
        (
            {"metadata": {"labels": ["a"]}},
            _FIELD.format("array", "ObjectMeta.metadata.labels", "map[string]string"),
        ),
        ({"metadata": []}, _FIELD.format("array", "Deployment.metadata", "v1.ObjectMeta")),
        (
            {"metadata": {"creationTimestamp": "abc"}},
            'parsing time "abc" as "2006-01-02T15:04:05Z07:00": cannot parse "abc" as "2006"',
        ),
        (
            {"metadata": {"creationTimestamp": 5}},
            _FIELD.format("number", "ObjectMeta.metadata.creationTimestamp", "string"),
        ),
    ],
)
def test_type_mismatches_have_gos_messages(obj: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as rejected:
        DEPLOYMENT.decode(obj)
    expected = f'Deployment in version "v1" cannot be handled as a Deployment: {message}'
    assert rejected.value.message == expected


@pytest.mark.parametrize(
    ("model", "obj", "message"),
    [
        (SECRET, {"data": {"a": "!!"}}, "illegal base64 data at input byte 0"),
        (SECRET, {"data": {"a": "YQ"}}, "illegal base64 data at input byte 0"),
        (SECRET, {"data": {"a": "YWFhYQ=x"}}, "illegal base64 data at input byte 6"),
        (SECRET, {"data": {"a": 5}}, _FIELD.format("number", "Secret.data", "[]uint8")),
        (CONFIG, {"data": {"a": True}}, _FIELD.format("bool", "ConfigMap.data", "string")),
        (
            LEASE,
            _spec(renewTime="2020-01-01T00:00:00Z"),
            'parsing time "2020-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000"',
        ),
        (
            LEASE,
            _spec(renewTime="2020-13-01T00:00:00.123456Z"),
            'parsing time "2020-13-01T00:00:00.123456Z": month out of range',
        ),
        (EVENT, {"firstTimestamp": "2020-02-30T00:00:00Z"}, 'parsing time "2020-02-30T00:00:00Z": day out of range'),
        (
            EVENT,
            {"firstTimestamp": "2020-01-01T00:00:00"},
            'parsing time "2020-01-01T00:00:00" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00"',
        ),
    ],
)
def test_unparsable_values_have_gos_messages(model: BuiltinType, obj: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as rejected:
        model.decode(obj)
    assert rejected.value.message.endswith(f": {message}")


def test_unknown_fields_are_dropped_and_reported_with_their_path() -> None:
    obj, unknown = DEPLOYMENT.decode({"bogus": 1, **_spec(foo=1, template={"spec": {"containers": [{"x": 1}]}})})
    assert unknown == [
        'unknown field "bogus"',
        'unknown field "spec.foo"',
        'unknown field "spec.template.spec.containers[0].x"',
    ]
    assert "bogus" not in obj


def test_field_names_are_case_sensitive() -> None:
    assert DEPLOYMENT.decode(_spec(Replicas=1))[1] == ['unknown field "spec.Replicas"']


def test_empty_values_are_written_as_go_writes_them() -> None:
    obj, _ = DEPLOYMENT.decode({"metadata": {"name": "x", "labels": {}, "annotations": None}})
    assert obj == {
        "metadata": {"name": "x"},
        "spec": {"selector": None, "template": {"metadata": {}, "spec": {"containers": None}}, "strategy": {}},
        "status": {},
    }


def test_decoding_does_not_modify_its_argument() -> None:
    original = {"metadata": {"labels": {}}, "x": {}}
    DEPLOYMENT.decode(original)
    assert original == {"metadata": {"labels": {}}, "x": {}}


@pytest.mark.parametrize(
    ("quantity", "written"),
    [("1.5", "1500m"), (0.5, "500m"), ("1000k", "1M"), ("1Ki", "1Ki"), ("1e3", "1e3"), (None, "0")],
)
def test_quantities_are_canonical(quantity: Any, written: str) -> None:
    assert QUOTA.decode(_spec(hard={"cpu": quantity}))[0]["spec"]["hard"] == {"cpu": written}


def test_resources_are_rounded_up_to_thousandths() -> None:
    assert QUOTA.decode(_spec(hard={"cpu": "0.1234567891234"}))[0]["spec"]["hard"] == {"cpu": "124m"}


def test_times_are_in_utc() -> None:
    assert (
        EVENT.decode({"firstTimestamp": "2020-01-01T00:00:00.9+02:00"})[0]["firstTimestamp"] == "2019-12-31T22:00:00Z"
    )
    renewed = LEASE.decode(_spec(renewTime="2020-01-01T00:00:00.123456+02:00"))[0]["spec"]["renewTime"]
    assert renewed == "2019-12-31T22:00:00.123456Z"


def test_bytes_may_contain_newlines_or_be_arrays_of_numbers() -> None:
    assert SECRET.decode({"data": {"a": "Y\nQ==", "b": [97, 98], "c": None}})[0]["data"] == {
        "a": "YQ==",
        "b": "YWI=",
        "c": "",
    }


def test_crd_schemas_keep_their_alternatives() -> None:
    schema = {"items": {"type": "string"}, "additionalProperties": False, "enum": [None, 1], "default": {"a": None}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = CRD.decode(_spec(versions=[version]))[0]["spec"]
    assert spec["versions"][0]["schema"]["openAPIV3Schema"] == schema


def test_unlimited_nesting_is_rejected() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"not": schema}
    with pytest.raises(BadRequest, match="max depth"):
        CRD.decode(_spec(versions=[{"schema": {"openAPIV3Schema": schema}}]))


def test_every_resource_has_types_that_load() -> None:
    registry = Registry(resources())
    for resource in registry:
        for version in resource.versions.values():
            decoded, _ = version.model.decode({})
            version.model.default(decoded)
            assert version.model.openapi()["type"] == "object"
            assert version.model.merge_type is not None


def test_openapi_definitions_contain_no_descriptions() -> None:
    assert "description" not in str(definitions("io.k8s.api.core.v1.PodSpec"))
    assert len(DEFINITIONS) > 500
    with pytest.raises(KeyError):
        definitions("io.k8s.api.core.v1.Nope")
