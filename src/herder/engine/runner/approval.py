"""Signed approval: proof that Herder's controllers created a Job, and of what its pods run.

A user who may edit a namespace can create Jobs and pods, copy labels, annotations and owner references, and replace
Secrets. So the controller that creates a Job signs the pod spec, the object that the Job belongs to, and the contents
of the Secrets that it wrote, with a key that only the manager can read. The runner runs the signed spec instead of the
pod's own; later changes of the Job or the pod have no effect.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from herder.engine.meta.kinds import Object

SPEC_ANNOTATION = "runner.herder.io/approved-spec"
MAC_ANNOTATION = "runner.herder.io/approved-spec-mac"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"

_TOKEN_VOLUME, _TOKEN_SECONDS = "kube-api-access", 3607


class Refused(Exception):
    """The runner does not run this pod; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that a Job serves. After its deletion, the runner refuses Jobs with copied annotations."""

    group: str
    version: str
    resource: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Approval:
    """Signed content of the approval annotations."""

    job: str
    owner: Owner
    spec: Object
    secrets: Mapping[str, str]  # name → MAC of its contents


def approve(
    key: bytes, namespace: str, *, job: str, owner: Owner, spec: Object, secrets: Mapping[str, Mapping[str, bytes]]
) -> dict[str, str]:
    """Return the annotations for the Job's pod template. `secrets` must be used with exactly these contents."""
    contents = {name: content_mac(key, namespace, name, data) for name, data in secrets.items()}
    approval = Approval(job, owner, _with_token(spec), contents)
    text = json.dumps(asdict(approval), sort_keys=True, separators=(",", ":"))
    return {SPEC_ANNOTATION: text, MAC_ANNOTATION: _mac(key, "spec", namespace, text)}


def verify(key: bytes, namespace: str, annotations: Mapping[str, str]) -> Approval:
    """Return the approval of a pod. Raises Refused if the annotations were not signed by the manager."""
    text, mac = annotations.get(SPEC_ANNOTATION), annotations.get(MAC_ANNOTATION)
    if text is None or mac is None:
        raise Refused("Herder's controllers did not create this pod's Job")
    if not hmac.compare_digest(_mac(key, "spec", namespace, text).encode(), mac.encode(errors="replace")):
        raise Refused(f"annotation {MAC_ANNOTATION} is not a signature of Herder's for {SPEC_ANNOTATION}")
    content: dict[str, Any] = json.loads(text)
    return Approval(content["job"], Owner(**content["owner"]), content["spec"], content["secrets"])


def content_mac(key: bytes, namespace: str, name: str, data: Mapping[str, bytes]) -> str:
    """Return a MAC instead of a digest, so that readers of the annotation cannot test guesses of the contents."""
    text = json.dumps({field: value.hex() for field, value in data.items()}, sort_keys=True)
    return _mac(key, "secret", namespace, name, text)


def _mac(key: bytes, *parts: str) -> str:
    message = json.dumps(["runner.herder.io/v1", *parts]).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _with_token(spec: Object) -> Object:
    """Add the service account token volume, which API servers would add to the pod but not to the signed spec."""
    if spec.get("automountServiceAccountToken") is False:
        return spec
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    mount = {"name": _TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}
    containers = [
        {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), mount]}
        for container in spec["containers"]
    ]
    volumes = [*(spec.get("volumes") or ()), {"name": _TOKEN_VOLUME, "projected": {"sources": sources}}]
    return {**spec, "containers": containers, "volumes": volumes}
