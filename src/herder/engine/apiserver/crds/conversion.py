"""Conversion between versions of a custom resource: by name alone, or by the webhook that its definition names.

Whoever converts, the result loses what the schema of the wanted version does not know. Objects travel to a webhook in
batches; it may change everything but who the object is: metadata is put back, labels and annotations excepted.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from herder.engine.apiserver.crds.model import CustomModel
from herder.engine.apiserver.stored import copied
from herder.engine.meta import names
from herder.engine.meta.errors import InternalError
from herder.engine.meta.kinds import GroupVersionKind, Object


class WebhookCaller(Protocol):
    """Who carries reviews to webhooks."""

    async def call(self, config: Object, body: bytes, *, seconds: float) -> bytes:
        """POST to what a clientConfig names; the answer's body. Raises an exception with words for users."""
        ...


_UNDERSTOOD = ("v1", "v1beta1")
_TIMEOUT_SECONDS = 30


Convert = Callable[[Sequence[Object], str], Awaitable[list[Object]]]
"""Objects and the wanted apiVersion -> the objects in it."""


class Conversion:
    """`Resource.convert` of a definition with several versions."""

    def __init__(self, convert: Convert, models: Mapping[str, CustomModel]) -> None:
        self._convert = convert
        self._models = models

    async def __call__(self, objects: Sequence[Object], api_version: str) -> list[Object]:
        """The objects in the wanted version; those that are there already stay as they are."""
        moved = [obj for obj in objects if obj.get("apiVersion") != api_version]
        converted = iter(await self._convert(moved, api_version) if moved else ())
        model = self._models.get(api_version.rpartition("/")[2])
        found = []
        for obj in objects:
            if obj.get("apiVersion") != api_version:
                obj = next(converted)
                if model is not None:
                    model.compiled.prune(obj)
            found.append(obj)
        return found


async def rename(objects: Sequence[Object], api_version: str) -> list[Object]:
    """Strategy None: the same object under another name."""
    return [copied(obj) | {"apiVersion": api_version} for obj in objects]


class WebhookConversion:
    """Strategy Webhook."""

    def __init__(self, webhook: Object, caller: WebhookCaller) -> None:
        self._config: Object = webhook.get("clientConfig") or {}
        wanted = webhook.get("conversionReviewVersions") or ()
        self._review_version = next((version for version in wanted if version in _UNDERSTOOD), "")
        self._caller = caller
        self._asked = itertools.count(1)  # an answer is matched to its question by its number

    async def __call__(self, objects: Sequence[Object], desired: str) -> list[Object]:
        subject = GroupVersionKind.of(objects[0])
        uid = str(next(self._asked))
        review = {
            "kind": "ConversionReview",
            "apiVersion": f"apiextensions.k8s.io/{self._review_version}",
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
        }
        if not self._review_version:
            raise _failed(subject, "does not recognize any of the supported conversion review versions")
        try:
            answer = await self._caller.call(self._config, msgspec.json.encode(review), seconds=_TIMEOUT_SECONDS)
            converted = _objects_of(msgspec.json.decode(answer), review)
        except InternalError:
            raise
        except Exception as problem:
            raise _failed(subject, f"failed: {problem}") from problem
        if len(converted) != len(objects):
            raise _failed(subject, f"returned {len(converted)} objects, expected {len(objects)}")
        return [
            _checked(subject, index, original, result, desired)
            for index, (original, result) in enumerate(zip(objects, converted, strict=True))
        ]


class BadReview(Exception):
    """What is wrong with a webhook's answer."""


def _objects_of(answer: Any, review: Object) -> list[Any]:
    if not isinstance(answer, dict):
        raise BadReview("the response is not an object")
    if answer.get("apiVersion") != review["apiVersion"] or answer.get("kind") != review["kind"]:
        expected, got = GroupVersionKind.of(review), GroupVersionKind.of(answer)
        raise BadReview(f"expected webhook response of {expected}, got {got}")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise BadReview("no response provided")
    if response.get("uid") != review["request"]["uid"]:
        raise BadReview(f'expected response.uid="{review["request"]["uid"]}", got "{response.get("uid", "")}"')
    result = response.get("result") or {}
    if result.get("status") != "Success":
        if result.get("message"):
            raise BadReview(result["message"])
        if not result.get("status"):
            raise BadReview("response.result.status was '' but should have been 'Success': the webhook gave no result")
        raise BadReview(f"response.result.status was '{result['status']}', not 'Success'")
    return response.get("convertedObjects") or []


def _checked(subject: GroupVersionKind, index: int, original: Object, result: Any, desired: str) -> Object:
    if not isinstance(result, dict):
        raise _failed(subject, f"returned invalid converted object at index {index}: not an object")
    problem = _wrong_identity(original, result, desired)
    if problem:
        raise _failed(subject, f"returned invalid converted object at index {index}: {problem}")
    metadata = result.get("metadata")
    problem = _wrong_metadata(original, metadata)
    if problem:
        raise _failed(subject, f"returned invalid metadata in object at index {index}: {problem}")
    restored = copied(original.get("metadata") or {})
    for field in ("labels", "annotations"):
        restored.pop(field, None)
        if isinstance(metadata, dict) and metadata.get(field) is not None:
            restored[field] = metadata[field]
    return {**result, "metadata": restored}


def _wrong_identity(original: Object, result: Object, desired: str) -> str:
    if result.get("apiVersion") != desired:
        return f"invalid groupVersion (expected {desired}, received {result.get('apiVersion', '')})"
    if result.get("kind") != original.get("kind"):
        return f"invalid kind (expected {original.get('kind', '')}, received {result.get('kind', '')})"
    before, after = original.get("metadata") or {}, result.get("metadata")
    if not isinstance(after, dict):
        return ""
    for field, name in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        if before.get(field, "") != after.get(field, ""):
            return f"must have the same {name}: {before.get(field, '')} != {after.get(field, '')}"
    return ""


def _wrong_metadata(original: Object, metadata: Any) -> str:
    if metadata is None:
        return "missing metadata in converted object"
    if not isinstance(metadata, dict):
        return f"invalid metadata of type {type(metadata).__name__} in converted object"
    for field in ("labels", "annotations"):
        pairs = metadata.get(field)
        if pairs is None:
            continue
        if not isinstance(pairs, dict):
            return f"invalid metadata.{field} of type {type(pairs).__name__} in converted object"
        for key, value in pairs.items():
            if not isinstance(value, str):
                return f"metadata.{field}[{key}] must be a string, but is {type(value).__name__} in converted object"
            problems = names.qualified_name(key if field == "labels" else key.lower())
            problems += names.label_value(value) if field == "labels" else []
            if problems:
                return f"metadata.{field}: Invalid value: {problems[0]}"
    return ""


def _failed(subject: GroupVersionKind, why: str) -> InternalError:
    return InternalError(f"Internal error occurred: conversion webhook for {subject} {why}")
