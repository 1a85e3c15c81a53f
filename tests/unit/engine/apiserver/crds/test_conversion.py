"""Conversion webhooks, with a real HTTPS server."""

from __future__ import annotations

import base64
import copy
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from herder.engine.apiserver.admission.webhooks.client import Address, WebhookClient
from herder.engine.apiserver.crds import resource_from_crd
from herder.engine.meta.errors import InternalError
from herder.engine.meta.kinds import Object
from tests.support.kube import Authority
from tests.unit.engine.apiserver.crds.samples import definition

Respond = Callable[[Object], Any]


def converted(review: Object, **changes: Any) -> Object:
    """Respond like a correct webhook, or like one with a single fault."""
    request = review["request"]
    objects = [copy.deepcopy(obj) | {"apiVersion": request["desiredAPIVersion"]} for obj in request["objects"]]
    for obj in objects:
        obj["spec"] = {"converted": obj.get("spec")}
    response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects} | changes
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


@asynccontextmanager
async def webhook(
    directory: Path, respond: Respond, *, service: bool = False, trusted: bool = True
) -> AsyncIterator[Any]:
    """Return a conversion function that calls `respond` over HTTPS."""
    authority = Authority(directory)
    certificate, key = authority.issue("webhook", server=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def handle(request: web.BaseRequest) -> web.Response:
        answer = respond(await request.json())
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]

    async def resolve(namespace: str, name: str, service_port: int) -> Address:
        assert (namespace, name, service_port) == ("default", "kubernetes", 443)
        return Address("127.0.0.1", port)

    bundle = base64.b64encode(authority.path.read_bytes()).decode() if trusted else ""
    where = (
        {"service": {"namespace": "default", "name": "kubernetes"}}
        if service
        else {"url": f"https://localhost:{port}/x"}
    )
    settings = {"clientConfig": {**where, "caBundle": bundle}, "conversionReviewVersions": ["v2", "v1"]}
    client = WebhookClient(resolve)
    crd = definition(conversion={"strategy": "Webhook", "webhook": settings})
    try:
        yield resource_from_crd(crd, webhooks=client).convert
    finally:
        await client.close()
        await runner.cleanup()


def widget(name: str, version: str = "v1") -> Object:
    metadata = {"name": name, "uid": f"uid-{name}", "labels": {"a": "b"}, "resourceVersion": "3"}
    return {"apiVersion": f"example.com/{version}", "kind": "Widget", "metadata": metadata, "spec": {"n": name}}


async def test_objects_are_converted_in_one_batch_and_in_order(tmp_path: Path) -> None:
    requested: list[Object] = []

    def respond(review: Object) -> Object:
        requested.append(review)
        return converted(review)

    async with webhook(tmp_path, respond) as convert:
        found = await convert([widget("a"), widget("b", "v1alpha1"), widget("c")], "example.com/v1alpha1")
    assert [(obj["metadata"]["name"], obj["apiVersion"]) for obj in found] == [
        ("a", "example.com/v1alpha1"), ("b", "example.com/v1alpha1"), ("c", "example.com/v1alpha1"),
    ]  # fmt: skip
    assert [obj["spec"] for obj in found] == [{"converted": {"n": "a"}}, {"n": "b"}, {"converted": {"n": "c"}}]
    (review,) = requested
    assert review["apiVersion"] == "apiextensions.k8s.io/v1"
    assert [obj["metadata"]["name"] for obj in review["request"]["objects"]] == ["a", "c"]


async def test_nothing_to_convert_makes_no_call(tmp_path: Path) -> None:
    async with webhook(tmp_path, lambda review: web.Response(status=500)) as convert:
        assert await convert([widget("a")], "example.com/v1") == [widget("a")]


async def test_labels_may_change_and_other_metadata_is_restored(tmp_path: Path) -> None:
    def respond(review: Object) -> Object:
        answer = converted(review)
        metadata = answer["response"]["convertedObjects"][0]["metadata"]
        metadata |= {
            "labels": {"new": "label"},
            "annotations": {"x": "y"},
            "resourceVersion": "99",
            "finalizers": ["f"],
        }
        return answer

    async with webhook(tmp_path, respond) as convert:
        (found,) = await convert([widget("a")], "example.com/v1alpha1")
    assert found["metadata"] == widget("a")["metadata"] | {"labels": {"new": "label"}, "annotations": {"x": "y"}}


def _of_object(change: Callable[[Object], Any]) -> Respond:
    def respond(review: Object) -> Object:
        answer = converted(review)
        change(answer["response"]["convertedObjects"][0])
        return answer

    return respond


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (lambda review: web.Response(status=500, text="boom"), "an error on the server"),
        (lambda review: web.Response(text="not json"), "failed: JSON is malformed"),
        (lambda review: [], "the response is not an object"),
        (lambda review: {"kind": "Foo", "apiVersion": "v1"}, "expected webhook response of"),
        (lambda review: converted(review, uid="other"), "expected response.uid="),
        (
            lambda review: converted(review, result={"status": "Failure", "message": "cannot do that"}),
            "failed: cannot do that",
        ),
        (lambda review: converted(review, result={}), "response.result.status was ''"),
        (lambda review: converted(review, convertedObjects=[]), "returned 0 objects, expected 1"),
        (
            _of_object(lambda obj: obj.update(apiVersion="example.com/v9")),
            "returned invalid converted object at index 0: invalid groupVersion "
            "(expected example.com/v1alpha1, received example.com/v9)",
        ),
        (_of_object(lambda obj: obj.update(kind="Gadget")), "invalid kind (expected Widget, received Gadget)"),
        (_of_object(lambda obj: obj["metadata"].update(name="z")), "must have the same name: a != z"),
        (_of_object(lambda obj: obj["metadata"].update(uid="z")), "must have the same UID: uid-a != z"),
        (_of_object(lambda obj: obj.pop("metadata")), "missing metadata in converted object"),
        (_of_object(lambda obj: obj["metadata"].update(labels={"a": 1})), "metadata.labels[a] must be a string"),
        (_of_object(lambda obj: obj["metadata"].update(labels={"a": "?"})), "a valid label must be"),
    ],
)
async def test_an_invalid_response_is_reported_with_its_fault(tmp_path: Path, respond: Respond, expected: str) -> None:
    async with webhook(tmp_path, respond) as convert:
        with pytest.raises(InternalError) as failure:
            await convert([widget("a")], "example.com/v1alpha1")
    assert "conversion webhook for example.com/v1, Kind=Widget" in failure.value.message
    assert expected in failure.value.message


async def test_an_untrusted_conversion_webhook_is_rejected(tmp_path: Path) -> None:
    async with webhook(tmp_path, converted, trusted=False) as convert:
        with pytest.raises(InternalError, match="failed to verify certificate"):
            await convert([widget("a")], "example.com/v1alpha1")


async def test_a_service_reference_is_resolved_to_its_endpoint(tmp_path: Path) -> None:
    async with webhook(tmp_path, converted, service=True) as convert:
        (found,) = await convert([widget("a")], "example.com/v1alpha1")
    assert found["spec"] == {"converted": {"n": "a"}}


async def test_a_webhook_must_support_a_known_review_version(tmp_path: Path) -> None:
    async with webhook(tmp_path, converted) as convert:
        convert._convert._review_version = ""
        with pytest.raises(InternalError, match="does not recognize any of the supported conversion review versions"):
            await convert([widget("a")], "example.com/v1alpha1")


async def test_the_none_strategy_drops_fields_unknown_to_the_other_version() -> None:
    crd = definition()
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}}
    schema["properties"]["spec"]["properties"]["fresh"] = {"type": "string", "default": "new"}  # type: ignore[index]
    crd["spec"]["versions"][1]["schema"] = {"openAPIV3Schema": schema}
    convert = resource_from_crd(crd).convert
    assert convert is not None
    original = widget("a") | {"spec": {"size": 3, "color": "red"}}
    (found,) = await convert([original], "example.com/v1alpha1")
    assert found == widget("a", "v1alpha1") | {"spec": {"size": 3}}
    assert original["spec"] == {"size": 3, "color": "red"}


def test_one_version_needs_no_conversion() -> None:
    crd = definition()
    del crd["spec"]["versions"][1]
    assert resource_from_crd(crd).convert is None
