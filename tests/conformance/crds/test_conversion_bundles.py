"""CRDs whose conversion webhook has an invalid caBundle."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from herder.engine.apiserver.pki import Pki
from tests.conformance.objects import CRDS, Obj, condition, definition, spec_schema
from tests.support.api import Api
from tests.support.engines import unique


def by_webhook(bundle: bytes) -> Obj:
    config = {"url": "https://127.0.0.1:1/", "caBundle": base64.b64encode(bundle).decode()}
    return {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": config}}


def with_conversion(bundle: bytes) -> Obj:
    group = f"{unique('bundles')}.example.com"
    crd = definition(group, "gadgets", "Gadget", spec_schema(size={"type": "integer"}))
    second = crd["spec"]["versions"][0] | {"name": "v2", "storage": False}
    crd["spec"] |= {"versions": [*crd["spec"]["versions"], second], "conversion": by_webhook(bundle)}
    return crd


@pytest.fixture(scope="module")
def good() -> bytes:
    return Pki.load_or_create(None, now=datetime.now(UTC), hosts=()).authority.certificate_pem


async def established(api: Api, crd: Obj) -> Any:
    url = api.cluster(CRDS, crd["metadata"]["name"])
    decided = ("InvalidCABundle", "InitialNamesAccepted")
    found = await api.until_object(url, lambda found: _establishment(found).get("reason") in decided)
    return _establishment(found)


def _establishment(crd: Obj) -> Obj:
    conditions = crd["status"].get("conditions") or []
    return next((each for each in conditions if each["type"] == "Established"), {})


OTHER_BLOCK = b"-----BEGIN PUBLIC KEY-----\nQUJD\n-----END PUBLIC KEY-----\n"


@pytest.mark.parametrize("bundle", [b"junk", b" \n", OTHER_BLOCK], ids=["junk", "blank", "no certificate"])
async def test_a_crd_is_not_established_with_an_invalid_ca_bundle(api: Api, good: bytes, bundle: bytes) -> None:
    crd = with_conversion(bundle)
    await api.create_cluster(CRDS, crd)
    found = await established(api, crd)
    assert (found["status"], found["reason"], found["message"]) == (
        "False",
        "InvalidCABundle",
        "The conversion webhook CABundle is invalid",
    )
    url = api.cluster(CRDS, crd["metadata"]["name"])
    (await api.patch(url, {"spec": {"conversion": by_webhook(good)}})).expect(200)
    await api.until_object(url, lambda found: condition(found, "Established") == "True")
    await api.delete(url)


async def test_an_established_crd_rejects_an_invalid_ca_bundle(api: Api, good: bytes) -> None:
    crd = with_conversion(good)
    await api.create_cluster(CRDS, crd)
    assert (await established(api, crd))["status"] == "True"
    url = api.cluster(CRDS, crd["metadata"]["name"])
    rejected = await api.patch(url, {"spec": {"conversion": by_webhook(b"junk")}})
    expected = 'Invalid value: "anVuaw==": unable to load root certificates: unable to parse bytes as PEM block'
    assert rejected.causes == [("FieldValueInvalid", "spec.conversion.webhookClientConfig.caBundle", expected)]
    await api.delete(url)
