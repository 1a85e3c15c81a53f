"""The kubeconfig Secret of a Cluster without a control plane provider."""

from __future__ import annotations

from datetime import timedelta

import pytest

from herder.api.capi.kinds import SECRET
from herder.api.capi.names import CERTIFICATE_EXPIRY, CERTIFICATE_RENEWAL, CLUSTER_NAME, SECRET_TYPE
from herder.controllers.capi.cluster.kubeconfig import secret_owners
from herder.engine.control.cache import Key
from herder.engine.meta.kinds import Object
from herder.engine.runtime.decision import Create, Effect, EffectResult, Patch, Ref
from tests.support.builders import new_object, writes_of
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.objects import (
    DEFINITIONS,
    ENDPOINT,
    OWNER,
    PROVISIONED,
    cluster,
    infra,
    plane,
    reconcile_cluster,
    secret,
)

OBJECTS = [cluster(control_plane=False, controlPlaneEndpoint=ENDPOINT), *DEFINITIONS, infra(PROVISIONED)]
ISSUED = {"kubeconfig": "c2VjcmV0", "expires": "2027-01-01T12:00:00+00:00", "renew": "2026-07-01T12:00:00+00:00"}


def effect(authority: str = "", kept: str = "") -> Effect:
    server = "https://10.0.0.1:6443"
    key = ("Cluster-c", "kubeconfig", server, authority, kept)
    arguments = {"namespace": "ns", "cluster": "c", "server": server}
    return Effect("kubeconfig", key, arguments, "create the kubeconfig of the cluster")


def issued_secret(renew: str) -> Object:
    return secret("c-kubeconfig", annotations={CERTIFICATE_RENEWAL: renew, CERTIFICATE_EXPIRY: ISSUED["expires"]})


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([cluster(controlPlaneEndpoint=ENDPOINT), *DEFINITIONS, plane()], id="a provider creates it"),
        pytest.param([cluster(control_plane=False), *DEFINITIONS], id="no endpoint yet"),
        pytest.param([*OBJECTS, secret("c-kubeconfig")], id="a user created it"),
        pytest.param([*OBJECTS, issued_secret("2026-01-01T12:00:01+00:00")], id="created by us, not due for renewal"),
        pytest.param([*OBJECTS, issued_secret("some day")], id="unreadable renewal annotation"),
    ],
)
def test_no_kubeconfig_is_created(objects: list[Object]) -> None:
    decision = reconcile_cluster(*objects)
    assert decision.effects == ()
    assert not [write for write in writes_of(decision) if isinstance(write, Create)]


def test_kubeconfig_is_requested_without_reading_the_ca_key() -> None:
    decision = reconcile_cluster(*OBJECTS)
    assert decision.effects == (effect(),)
    assert decision.wait is not None
    assert decision.wait.reason == "creating the kubeconfig"


def test_kubeconfig_is_requested_again_when_the_ca_appears() -> None:
    failed = {effect().key: EffectResult(error="Secret c-ca does not exist", attempts=3)}
    waiting = reconcile_cluster(*OBJECTS, results=failed)
    assert waiting.effects == (effect(),)
    assert waiting.wait is not None
    assert waiting.wait.reason == "cannot create the kubeconfig: Secret c-ca does not exist"
    assert reconcile_cluster(*OBJECTS, secret("c-ca", revision="9"), results=failed).effects == (effect(authority="9"),)


def test_kubeconfig_secret_follows_the_contract() -> None:
    decision = reconcile_cluster(*OBJECTS, results={effect().key: EffectResult(ISSUED)})
    (create,) = [write for write in writes_of(decision) if isinstance(write, Create)]
    assert create.kind == SECRET
    assert create.obj == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": {
            "name": "c-kubeconfig",
            "namespace": "ns",
            "labels": {CLUSTER_NAME: "c"},
            "annotations": {CERTIFICATE_EXPIRY: ISSUED["expires"], CERTIFICATE_RENEWAL: ISSUED["renew"]},
            "ownerReferences": [OWNER],
        },
        "data": {"value": ISSUED["kubeconfig"]},
    }
    assert decision.effects == ()


def test_cluster_is_requeued_when_its_kubeconfig_is_due_for_renewal() -> None:
    assert reconcile_cluster(*OBJECTS, issued_secret("2026-01-01T13:00:00+00:00")).wake_at == NOW + timedelta(hours=1)


def test_kubeconfig_is_renewed_when_due() -> None:
    expiring = issued_secret("2026-01-01T12:00:00+00:00")
    assert reconcile_cluster(*OBJECTS, expiring).effects == (effect(kept="77"),)
    decision = reconcile_cluster(*OBJECTS, expiring, results={effect(kept="77").key: EffectResult(ISSUED)})
    annotations = {CERTIFICATE_EXPIRY: ISSUED["expires"], CERTIFICATE_RENEWAL: ISSUED["renew"]}
    (patch,) = [write for write in writes_of(decision) if isinstance(write, Patch) and write.ref.kind == SECRET]
    assert patch.ref == Ref(SECRET, "c-kubeconfig", "ns")
    assert patch.patch == {"metadata": {"annotations": annotations}, "data": {"value": ISSUED["kubeconfig"]}}


@pytest.mark.parametrize(
    ("name", "names"), [("c-kubeconfig", ["c"]), ("c-ca", ["c"]), ("a-b-ca", ["a-b"]), ("c-etcd", []), ("w-1", [])]
)
def test_secrets_map_to_their_cluster(name: str, names: list[str]) -> None:
    assert list(secret_owners(new_object(SECRET, name, "ns"))) == [Key("ns", each) for each in names]
