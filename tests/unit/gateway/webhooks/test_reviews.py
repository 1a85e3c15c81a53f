"""AdmissionReviews, question and answer."""

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


def question(kind: kinds.Kind, obj: Any, old: Any = None) -> Object:
    told = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    operation = "UPDATE" if old is not None else "CREATE"
    request = {"uid": "u-1", "kind": told, "operation": operation, "object": obj, "oldObject": old}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def ask(path: str, review: Object) -> Object:
    answered = msgspec.json.decode(answer(ENDPOINTS[path], msgspec.json.encode(review)))
    assert (answered["apiVersion"], answered["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Object = answered["response"]
    assert response["uid"] == "u-1"
    return response


@pytest.mark.parametrize("case", [case for case in CASES if case.result is not None], ids=str)
def test_defaults_come_as_a_json_patch(case: Case) -> None:
    kind = case.kind
    path = f"/mutate-{kind.group.replace('.', '-')}-v1beta2-{kind.kind.lower()}"
    response = ask(path, question(kind, case.obj, case.old))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert apply_json_patch(changed(case.obj, {}), operations) == case.result


@pytest.mark.parametrize("kind", VALID, ids=str)
def test_what_is_complete_and_valid_is_allowed_without_more(kind: kinds.Kind) -> None:
    for endpoint in ENDPOINTS.values():
        if endpoint.kind == kind:
            assert ask(endpoint.path, question(kind, VALID[kind])) == {"uid": "u-1", "allowed": True}


def test_a_refusal_is_a_status_with_causes() -> None:
    response = ask(VALIDATE, question(kinds.MACHINE, changed(MACHINE, {"spec.version": "x"})))
    status = response["status"]
    assert response["allowed"] is False
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert status["message"].startswith('Machine.cluster.x-k8s.io "one" is invalid: spec.version: Invalid value: "x"')
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.version"]


def test_bookkeeping_on_an_object_that_would_be_refused_is_allowed() -> None:
    """So it can be deleted, whatever rules there were when it was made."""
    old = changed(MACHINE, {"spec.version": "x", "metadata.finalizers": ["example.com/a"]})
    new = changed(old, {"metadata.finalizers": []})
    assert ask(VALIDATE, question(kinds.MACHINE, new, old))["allowed"]
    assert ask(MUTATE, question(kinds.MACHINE, new, old)) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
        b"[" * 100_000,
        msgspec.json.encode(question(kinds.CLUSTER, {})),
        msgspec.json.encode(question(kinds.MACHINE, None)),
        msgspec.json.encode(question(kinds.MACHINE, {}, "old")),
    ],
)
def test_what_is_no_question_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        answer(ENDPOINTS[VALIDATE], body)


# --- configurations -----------------------------------------------------------------------------------------------


def configurations(place: WebhookAddress, bundle: bytes) -> list[Object]:
    return [rendered(configuration, place, bundle) for configuration in (*CLUSTER_API, *CLUSTERS)]


def test_the_configurations_send_every_kind_to_its_path() -> None:
    made = configurations(Url("https://192.0.2.1:9443/"), b"PEM")
    assert [each["kind"] for each in made] == ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] * 2
    paths = [hook["clientConfig"]["url"] for config in made for hook in config["webhooks"]]
    assert sorted(paths) == sorted(f"https://192.0.2.1:9443{path}" for path in ENDPOINTS)
    assert MUTATE in ENDPOINTS
    assert "/validate-addons-cluster-x-k8s-io-v1beta2-clusterresourceset" in ENDPOINTS


def test_a_webhook_is_asked_before_anything_is_stored_and_never_skipped() -> None:
    for configuration in configurations(Service("herder-system", "herder"), b"PEM"):
        for hook in configuration["webhooks"]:
            assert (hook["failurePolicy"], hook["matchPolicy"], hook["sideEffects"]) == ("Fail", "Equivalent", "None")
            assert hook["timeoutSeconds"] == 10
            assert hook["rules"][0]["operations"] == ["CREATE", "UPDATE"]


def test_in_a_cluster_the_service_is_named() -> None:
    place = Service("herder-system", "herder", 8443)
    client = configurations(place, b"PEM")[0]["webhooks"][0]["clientConfig"]
    assert client["caBundle"] == base64.b64encode(b"PEM").decode()
    assert client["service"] | {"path": ""} == {
        "namespace": "herder-system", "name": "herder", "port": 8443, "path": ""
    }  # fmt: skip
    assert place.names == ("herder.herder-system.svc", "herder.herder-system.svc.cluster.local")


@pytest.mark.parametrize("url", ["http://h:1", "h:1", "https://", ""])
def test_only_https_has_a_place(url: str) -> None:
    with pytest.raises(ValueError, match="not an https URL"):
        _ = Url(url).names
