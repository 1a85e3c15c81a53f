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
from tests.support.views import NOW
from tests.unit.controllers.capi.cluster.herd import (
    DEFINITIONS,
    ENDPOINT,
    OWNER,
    PROVISIONED,
    cluster,
    decide,
    infra,
    made,
    plane,
    secret,
    writes,
)

OBJECTS = [cluster(control_plane=False, controlPlaneEndpoint=ENDPOINT), *DEFINITIONS, infra(PROVISIONED)]
MADE = {"kubeconfig": "c2VjcmV0", "expires": "2027-01-01T12:00:00+00:00", "renew": "2026-07-01T12:00:00+00:00"}


def effect(authority: str = "", kept: str = "") -> Effect:
    server = "https://10.0.0.1:6443"
    key = ("Cluster-c", "kubeconfig", server, authority, kept)
    arguments = {"namespace": "ns", "cluster": "c", "server": server}
    return Effect("kubeconfig", key, arguments, "create the kubeconfig of the cluster")


def ours(renew: str) -> Object:
    return secret("c-kubeconfig", annotations={CERTIFICATE_RENEWAL: renew, CERTIFICATE_EXPIRY: MADE["expires"]})


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([cluster(controlPlaneEndpoint=ENDPOINT), *DEFINITIONS, plane()], id="a provider makes it"),
        pytest.param([cluster(control_plane=False), *DEFINITIONS], id="no endpoint yet"),
        pytest.param([*OBJECTS, secret("c-kubeconfig")], id="somebody made it"),
        pytest.param([*OBJECTS, ours("2026-01-01T12:00:01+00:00")], id="we did, and it is fresh"),
        pytest.param([*OBJECTS, ours("some day")], id="somebody changed our words"),
    ],
)
def test_no_kubeconfig_is_made(objects: list[Object]) -> None:
    decision = decide(*objects)
    assert decision.effects == ()
    assert not [write for write in writes(decision) if isinstance(write, Create)]


def test_it_is_asked_for_without_the_key_ever_being_seen() -> None:
    decision = decide(*OBJECTS)
    assert decision.effects == (effect(),)
    assert decision.wait is not None
    assert decision.wait.reason == "creating the kubeconfig"


def test_it_is_asked_for_anew_when_the_authority_comes() -> None:
    failed = {effect().key: EffectResult(error="Secret c-ca does not exist", attempts=3)}
    waiting = decide(*OBJECTS, results=failed)
    assert waiting.effects == (effect(),)
    assert waiting.wait is not None
    assert waiting.wait.reason == "cannot create the kubeconfig: Secret c-ca does not exist"
    assert decide(*OBJECTS, secret("c-ca", revision="9"), results=failed).effects == (effect(authority="9"),)


def test_it_goes_into_a_secret_as_the_contract_says() -> None:
    decision = decide(*OBJECTS, results={effect().key: EffectResult(MADE)})
    (create,) = [write for write in writes(decision) if isinstance(write, Create)]
    assert create.kind == SECRET
    assert create.obj == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SECRET_TYPE,
        "metadata": {
            "name": "c-kubeconfig",
            "namespace": "ns",
            "labels": {CLUSTER_NAME: "c"},
            "annotations": {CERTIFICATE_EXPIRY: MADE["expires"], CERTIFICATE_RENEWAL: MADE["renew"]},
            "ownerReferences": [OWNER],
        },
        "data": {"value": MADE["kubeconfig"]},
    }
    assert decision.effects == ()


def test_it_is_looked_at_again_when_half_of_its_life_is_over() -> None:
    assert decide(*OBJECTS, ours("2026-01-01T13:00:00+00:00")).wake_at == NOW + timedelta(hours=1)


def test_and_renewed_then() -> None:
    old = ours("2026-01-01T12:00:00+00:00")
    assert decide(*OBJECTS, old).effects == (effect(kept="77"),)
    decision = decide(*OBJECTS, old, results={effect(kept="77").key: EffectResult(MADE)})
    annotations = {CERTIFICATE_EXPIRY: MADE["expires"], CERTIFICATE_RENEWAL: MADE["renew"]}
    (patch,) = [write for write in writes(decision) if isinstance(write, Patch) and write.ref.kind == SECRET]
    assert patch.ref == Ref(SECRET, "c-kubeconfig", "ns")
    assert patch.patch == {"metadata": {"annotations": annotations}, "data": {"value": MADE["kubeconfig"]}}


@pytest.mark.parametrize(
    ("name", "names"), [("c-kubeconfig", ["c"]), ("c-ca", ["c"]), ("a-b-ca", ["a-b"]), ("c-etcd", []), ("w-1", [])]
)
def test_which_cluster_a_secret_is_about(name: str, names: list[str]) -> None:
    assert list(secret_owners(made(SECRET, name))) == [Key("ns", each) for each in names]
