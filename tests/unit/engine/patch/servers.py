"""Two servers for Widgets: a real kube-apiserver, and a model that runs a request through the functions under test."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from herder.engine.meta.errors import StatusError, invalid
from herder.engine.meta.kinds import GroupKind
from herder.engine.patch import apply_json_patch, apply_merge_patch
from herder.engine.patch.patches.json_patch import copy_json
from herder.engine.patch.ssa import managed
from herder.engine.patch.typed.types import type_from_schema
from herder.engine.schema import compile_schema
from tests.unit.engine.patch.kinds import API_VERSION, DEFINITION, GROUP, KIND, PLURAL, SCHEMA, VERSION

Answer = tuple[int, Any]


@dataclass(frozen=True)
class Request:
    """One write by one manager."""

    verb: str  # create, update, merge, json, apply
    manager: str
    body: Any
    force: bool = False
    subresource: str = ""


PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
    "strategic": "application/strategic-merge-patch+json",
}


def blamed_on_caller(code: int, status: dict[str, Any]) -> Answer:
    """kube-apiserver answers an invalid patch with a 500 without a reason; here it is a bad request with a message."""
    if code == 500 and not status.get("reason"):
        return 400, {**status, "code": 400, "reason": "BadRequest"}
    return code, status


class RealServer:
    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url = cluster["server"]
        self.context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.context.load_cert_chain(user["client-certificate"], user["client-key"])

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Answer:
        data = None if method == "GET" else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Content-Type", content_type)
        try:
            with urllib.request.urlopen(request, context=self.context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                return blamed_on_caller(error.code, json.loads(text) if text.startswith(b"{") else {})

    def write(self, request: Request, path: str, name: str) -> Answer:
        query = f"?fieldManager={request.manager}" + ("&force=true" if request.force else "")
        target = f"{path}/{name}" + (f"/{request.subresource}" if request.subresource else "")
        if request.verb == "create":
            return self.call("POST", path + query, request.body)
        if request.verb == "update":
            return self.call("PUT", target + query, request.body)
        return self.call("PATCH", target + query, request.body, PATCHES[request.verb])

    def install(self) -> None:
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        for _ in range(100):
            code, _answer = self.call("GET", WIDGETS)
            if code == 200:
                return
            time.sleep(0.1)
        raise TimeoutError("the custom resource is not served")


WIDGETS = f"/apis/{GROUP}/{VERSION}/namespaces/default/{PLURAL}"
WIDGET_TYPE = type_from_schema(SCHEMA)
RESET_MAIN = {"f:status": {}}
RESET_STATUS = {"f:metadata": {}, "f:spec": {}}


class ModelServer:
    """Hold one Widget, and process writes like a server that uses `herder.engine.patch`."""

    def __init__(self) -> None:
        self.live: dict[str, Any] | None = None
        self.schema = compile_schema(SCHEMA)
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def write(self, request: Request) -> Answer:
        self.now += timedelta(seconds=1)
        try:
            return self._write(request)
        except StatusError as error:
            return error.code, error.to_status()

    def _write(self, request: Request) -> Answer:
        created = self.live is None
        if request.verb == "apply":
            new = managed.apply(self.live, request.body, force=request.force, kind=KIND, **self._common(request))
            self._complete(new)
        else:
            new = copy_json(self._result_of(request))
            self.schema.prune(new)
            self._complete(new)
            entries = managed.track_update(new, self.live, **self._common(request))
            new["metadata"].pop("managedFields", None)
            if entries:
                new["metadata"]["managedFields"] = entries
        self._prepare(new, request.subresource)
        found = self.schema.validate(new, self.live)
        if found:
            raise invalid(GroupKind(GROUP, KIND), new["metadata"]["name"], found)
        if self.live is not None and new["metadata"].get("managedFields"):
            new["metadata"]["managedFields"] = managed.keep_times_of_noop(new, self.live)
        self.live = new
        return (201 if created else 200), new

    def _result_of(self, request: Request) -> Any:
        if request.verb in ("create", "update"):
            return request.body
        assert self.live is not None
        change = apply_merge_patch if request.verb == "merge" else apply_json_patch
        return change(self.live, request.body)

    def _common(self, request: Request) -> dict[str, Any]:
        return {
            "manager": request.manager,
            "api_version": API_VERSION,
            "subresource": request.subresource,
            "now": self.now,
            "type_of": {API_VERSION: WIDGET_TYPE}.get,
            "reset": RESET_STATUS if request.subresource else RESET_MAIN,
        }

    def _complete(self, obj: dict[str, Any]) -> None:
        self.schema.default(obj)
        # Metadata passes through a Go struct, which has no empty fields.
        obj["metadata"] = {key: value for key, value in obj["metadata"].items() if value not in (None, {}, [])}

    def _prepare(self, new: dict[str, Any], subresource: str) -> None:
        """Reset the fields that the endpoint may not change."""
        old = self.live or {}
        if not subresource:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
            return
        entries = new["metadata"].get("managedFields")
        status = new.get("status")
        new.clear()
        new.update(copy_json(old))
        new.pop("status", None)
        if status is not None:
            new["status"] = status
        new["metadata"] = {k: v for k, v in old["metadata"].items() if k != "managedFields"}
        if entries:
            new["metadata"]["managedFields"] = entries


def comparable(answer: Answer) -> Any:
    """Return the parts on which the two servers must agree."""
    code, body = answer
    if code == 422 and "is invalid" in body["message"]:
        return code, "Invalid"  # the tests of schemas cover the message
    if code >= 400:
        return code, body.get("reason", ""), body.get("message"), _causes(body)
    metadata = body["metadata"]
    entries = [{k: v for k, v in entry.items() if k != "time"} for entry in metadata.get("managedFields") or []]
    kept = {k: metadata[k] for k in ("labels", "annotations", "finalizers") if metadata.get(k)}
    rest = {k: v for k, v in body.items() if k != "metadata"}
    return code, rest, kept, sorted(entries, key=lambda entry: json.dumps(entry, sort_keys=True))


def _causes(status: Any) -> Any:
    causes = (status.get("details") or {}).get("causes") or []
    return sorted((c["field"], c["message"]) for c in causes if c.get("reason") == "FieldManagerConflict")
