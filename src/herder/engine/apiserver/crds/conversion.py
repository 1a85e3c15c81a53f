"""Convert custom resources between versions: by changing apiVersion only, or by webhook.

The result is pruned by the schema of the desired version. Objects are sent to a webhook in batches. Metadata except
labels and annotations is restored from the original, so a webhook cannot change an object's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from herder.engine.apiserver.crds.model import CustomModel
from herder.engine.apiserver.registry.storage_codec import deep_copy
from herder.engine.meta import names
from herder.engine.meta.errors import InternalError
from herder.engine.meta.kinds import GroupVersionKind, Object


class WebhookCaller(Protocol):
    """HTTPS client for conversion webhooks."""

    async def call(self, config: Object, body: bytes, *, seconds: float) -> bytes:
        """POST to the webhook of a clientConfig and return the response body. Raises an exception with a message for
        users."""
        ...


_REVIEW_VERSIONS = ("v1", "v1beta1")
_TIMEOUT_SECONDS = 30


Convert = Callable[[Sequence[Object], str], Awaitable[list[Object]]]
"""Converts objects to an apiVersion."""


class Conversion:
    """`Resource.convert` of a CRD with several versions."""

    def __init__(self, convert: Convert, models: Mapping[str, CustomModel]) -> None:
        self._convert = convert
        self._models = models

    async def __call__(self, objects: Sequence[Object], api_version: str) -> list[Object]:
        """Convert the objects; those already in the version are returned unchanged."""
        outdated = [obj for obj in objects if obj.get("apiVersion") != api_version]
        converted = iter(await self._convert(outdated, api_version) if outdated else ())
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
    """Conversion strategy None: only apiVersion changes."""
    return [deep_copy(obj) | {"apiVersion": api_version} for obj in objects]


class WebhookConversion:
    """Conversion strategy Webhook."""

    def __init__(self, webhook: Object, caller: WebhookCaller) -> None:
        self._config: Object = webhook.get("clientConfig") or {}
        wanted = webhook.get("conversionReviewVersions") or ()
        self._review_version = next((version for version in wanted if version in _REVIEW_VERSIONS), "")
        self._caller = caller
        self._next_uid = itertools.count(1)  # uid of the next ConversionReview

    async def __call__(self, objects: Sequence[Object], desired: str) -> list[Object]:
        subject = GroupVersionKind.of(objects[0])
        uid = str(next(self._next_uid))
        review = {
            "kind": "ConversionReview",
            "apiVersion": f"apiextensions.k8s.io/{self._review_version}",
            "request": {"uid": uid, "desiredAPIVersion": desired, "objects": objects},
        }
        if not self._review_version:
            raise _failed(subject, "does not recognize any of the supported conversion review versions")
        try:
            response_body = await self._caller.call(self._config, msgspec.json.encode(review), seconds=_TIMEOUT_SECONDS)
            converted = _objects_of(msgspec.json.decode(response_body), review)
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
    """The webhook's response is invalid."""


def _objects_of(response_body: Any, review: Object) -> list[Any]:
    if not isinstance(response_body, dict):
        raise BadReview("the response is not an object")
    if response_body.get("apiVersion") != review["apiVersion"] or response_body.get("kind") != review["kind"]:
        expected, got = GroupVersionKind.of(review), GroupVersionKind.of(response_body)
        raise BadReview(f"expected webhook response of {expected}, got {got}")
    response = response_body.get("response")
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
    restored = deep_copy(original.get("metadata") or {})
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
