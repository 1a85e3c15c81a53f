"""Every sample is created with the same defaults as on a real kube-apiserver."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from herder.engine.apiserver.builtin.defaults.pods import image_tag
from tests.unit.engine.apiserver.builtin.answers import REAL
from tests.unit.engine.apiserver.builtin.driving import create, read, resource_of
from tests.unit.engine.apiserver.builtin.record import key, without_uids
from tests.unit.engine.apiserver.builtin.samples import SAMPLES

# Added by kube-apiserver's admission, not by the kind.
_ADMISSION = {
    "Pod": ("priority", "preemptionPolicy", "serviceAccount", "serviceAccountName", "tolerations"),
    "Node": ("taints",),
}
# Finalizers that protect objects in use: nothing mounts volumes here, and no controller would remove them.
_PROTECTED = {"PersistentVolume", "PersistentVolumeClaim", "VolumeAttributesClass"}


def _comparable(obj: dict[str, Any]) -> dict[str, Any]:
    obj = copy.deepcopy(obj)
    for name in ("uid", "namespace", "generation"):
        obj["metadata"].pop(name, None)
    for name in _ADMISSION.get(obj["kind"], ()):
        obj["spec"].pop(name, None)
    obj.get("status", {}).pop("lastPhaseTransitionTime", None)
    if obj["kind"] in _PROTECTED:
        obj["metadata"].pop("finalizers", None)
    return obj


@pytest.mark.parametrize("sample", SAMPLES, ids=key)
def test_created_objects_match_kube_apiserver(sample: dict[str, Any]) -> None:
    assert _comparable(without_uids(create(sample))) == _comparable(REAL["created"][key(sample)])


@pytest.mark.parametrize("sample", SAMPLES, ids=key)
def test_generation_is_set_for_the_same_kinds_as_by_kube_apiserver(sample: dict[str, Any]) -> None:
    counted = "generation" in REAL["created"][key(sample)]["metadata"]
    assert resource_of(sample).strategy.tracks_generation == counted


@pytest.mark.parametrize("sample", SAMPLES, ids=key)
def test_defaulting_is_idempotent(sample: dict[str, Any]) -> None:
    once = read(sample)
    assert read(once) == once


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("nginx", "latest"),
        ("nginx:1", "1"),
        ("host:5000/nginx", "latest"),
        ("host:5000/nginx:1", "1"),
        ("a@sha256:00", ""),
        ("", ""),
    ],
)
def test_tag_of_an_image(image: str, tag: str) -> None:
    assert image_tag(image) == tag
