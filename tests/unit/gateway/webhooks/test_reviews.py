"""AdmissionReviews: requests and responses."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from herder.api.capi import kinds
from herder.engine.meta.errors import BadRequest
from herder.engine.meta.kinds import Object
from herder.engine.patch import apply_json_patch
from herder.gateway.webhooks.configurations import CLUSTER_API, CLUSTERS, Service, Url, WebhookAddress, rendered
from herder.gateway.webhooks.reviews import ENDPOINTS, answer
from tests.unit.api.capi.admission.cases import CASES, Case
from tests.unit.api.capi.admission.objects import MACHINE, VALID, changed

MUTATE = "/mutate-cluster-x-k8s-io-v1beta2-machine"
VALIDATE = "/validate-cluster-x-k8s-io-v1beta2-machine"


def new_review(kind: kinds.Kind, obj: Any, old: Any = None) -> Object:
    kind_fields = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    operation = "UPDATE" if old is not None else "CREATE"
    request = {"uid": "u-1", "kind": kind_fields, "operation": operation, "object": obj, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def send(path: str, review: Object) -> Object:
    review_response = msgspec.json.decode(answer(ENDPOINTS[path], msgspec.json.encode(review)))
    assert (review_response["apiVersion"], review_response["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Object = review_response["response"]
    assert response["uid"] == "u-1"
    return response


@pytest.mark.parametrize("case", [case for case in CASES if case.result is not None], ids=str)
def test_defaults_are_returned_as_a_json_patch(case: Case) -> None:
    kind = case.kind
    path = f"/mutate-{kind.group.replace('.', '-')}-v1beta2-{kind.kind.lower()}"
    response = send(path, new_review(kind, case.obj, case.old))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert apply_json_patch(changed(case.obj, {}), operations) == case.result


@pytest.mark.parametrize("kind", VALID, ids=str)
def test_a_valid_object_is_allowed_without_a_patch(kind: kinds.Kind) -> None:
    for endpoint in ENDPOINTS.values():
        if endpoint.kind == kind:
            assert send(endpoint.path, new_review(kind, VALID[kind])) == {"uid": "u-1", "allowed": True}


def test_a_rejection_is_a_status_with_causes() -> None:
    response = send(VALIDATE, new_review(kinds.MACHINE, changed(MACHINE, {"spec.version": "x"})))
    status = response["status"]
    assert response["allowed"] is False
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('Machine.cluster.x-k8s.io "one" is invalid: spec.version: Invalid value: "x"')
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.version"]


def test_metadata_changes_of_an_invalid_object_are_allowed() -> None:
    """So that it can be deleted, whatever rules applied when it was created."""
    old = changed(MACHINE, {"spec.version": "x", "metadata.finalizers": ["example.com/a"]})
    new = changed(old, {"metadata.finalizers": []})
    assert send(VALIDATE, new_review(kinds.MACHINE, new, old))["allowed"]
    assert send(MUTATE, new_review(kinds.MACHINE, new, old)) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        b"[" * 100_000,
        msgspec.json.encode(new_review(kinds.CLUSTER, {})),
        msgspec.json.encode(new_review(kinds.MACHINE, None)),
        msgspec.json.encode(new_review(kinds.MACHINE, {}, "old")),
    ],
)
def test_an_invalid_review_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        answer(ENDPOINTS[VALIDATE], body)


# --- configurations -------------------------------------------------------------------------------------------------


def configurations(address: WebhookAddress, bundle: bytes) -> list[Object]:
    return [rendered(configuration, address, bundle) for configuration in (*CLUSTER_API, *CLUSTERS)]


def test_the_configurations_send_every_kind_to_its_path() -> None:
    rendered_configurations = configurations(Url("https://192.0.2.1:9443/"), b"PEM")
    assert [each["kind"] for each in rendered_configurations] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ] * 2
    paths = [hook["clientConfig"]["url"] for config in rendered_configurations for hook in config["webhooks"]]
    assert sorted(paths) == sorted(f"https://192.0.2.1:9443{path}" for path in ENDPOINTS)
    assert MUTATE in ENDPOINTS
    assert "/validate-addons-cluster-x-k8s-io-v1beta2-clusterresourceset" in ENDPOINTS


def test_webhooks_fail_closed() -> None:
    for configuration in configurations(Service("herder-system", "herder"), b"PEM"):
        for hook in configuration["webhooks"]:
            assert (hook["failurePolicy"], hook["matchPolicy"], hook["sideEffects"]) == ("Fail", "Equivalent", "None")
            assert hook["timeoutSeconds"] == 10
            assert hook["rules"][0]["operations"] == ["CREATE", "UPDATE"]


def test_in_a_cluster_the_webhooks_reference_a_service() -> None:
    address = Service("herder-system", "herder", 8443)
    client = configurations(address, b"PEM")[0]["webhooks"][0]["clientConfig"]
    assert client["caBundle"] == base64.b64encode(b"PEM").decode()
    assert client["service"] | {"path": ""} == {
        "namespace": "herder-system", "name": "herder", "port": 8443, "path": ""
    }  # fmt: skip
    assert address.names == ("herder.herder-system.svc", "herder.herder-system.svc.cluster.local")


@pytest.mark.parametrize("url", ["http://h:1", "h:1", "https://", ""])
def test_only_https_urls_are_accepted(url: str) -> None:
    with pytest.raises(ValueError, match="not an https URL"):
        _ = Url(url).names
