"""Answers of a real kube-apiserver to the cases.

python -m tests.unit.engine.schema.real_server     record its answers for the tests that run without it
"""

from __future__ import annotations

import json
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.kube import RealKube
from tests.unit.engine.schema.cases import CREATE, NORMALIZE, RULE_SCHEMAS, RULES, SCHEMAS, UPDATE, Case, Json, obj

RECORDED = Path(__file__).with_name("answers.json")
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


def collect_answers(server: Server) -> dict[str, Json]:
    return {
        "create": server.errors("create", CREATE),
        "update": server.errors("update", UPDATE),
        "rules": server.errors("rule", RULES),
        "normalize": server.normalized("normal", NORMALIZE),
        "schemas": {name: server.refusals(schema) for name, schema in {**SCHEMAS, **RULE_SCHEMAS}.items()},
    }


class Server:
    """A real server that validates schemas, each under one property of the `spec` of a kind created for it."""

    def __init__(self, kube: RealKube) -> None:
        self._url = kube.url
        self._context = ssl.create_default_context(cafile=str(kube.authority.path))
        self._context.load_cert_chain(*map(str, kube.admin))

    def errors(self, name: str, cases: dict[str, Case]) -> dict[str, Json]:
        """Return the causes of each rejection; old values are stored before the schema becomes strict."""
        self._define(name, dict.fromkeys(cases, _ANYTHING))
        for index, (case, (_, _, old)) in enumerate(cases.items()):
            if old is not None:
                code, answer = self._call("POST", _objects(name), _object(name, index, case, old))
                assert code == 201, answer
        self._redefine(name, {case: schema for case, (schema, _, _) in cases.items()})
        return {
            case: self._errors(name, index, case, value, update=old is not None)
            for index, (case, (_, value, old)) in enumerate(cases.items())
        }

    def _errors(self, name: str, index: int, case: str, value: Json, *, update: bool) -> Json:
        if update:
            path = f"{_objects(name)}/c{index}"
            _, stored = self._call("GET", path)
            code, answer = self._call("PUT", f"{path}?dryRun=All", {**stored, "spec": {case: value}})
        else:
            code, answer = self._call("POST", f"{_objects(name)}?dryRun=All", _object(name, index, case, value))
        assert code in (200, 201, 422), (case, answer)
        return _causes(answer)

    def refusals_of(self, name: str, schemas: dict[str, Json], objects: list[dict[str, Json]]) -> list[Json]:
        """Return the causes of rejection for each object, which is passed as its spec."""
        self._define(name, schemas)
        answers = []
        for spec in objects:
            body = {**_object(name, 0, "", None), "spec": spec}
            code, answer = self._call("POST", f"{_objects(name)}?dryRun=All", body)
            assert code in (201, 422), answer
            answers.append(_causes(answer))
        return answers

    def normalized(self, name: str, cases: dict[str, Case]) -> dict[str, Json]:
        self._define(name, {case: schema for case, (schema, _, _) in cases.items()})
        answers = {}
        for index, (case, (_, value, _)) in enumerate(cases.items()):
            body = _object(name, index, case, value)
            code, loose = self._call("POST", f"{_objects(name)}?dryRun=All&fieldValidation=Ignore", body)
            _, strict = self._call("POST", f"{_objects(name)}?dryRun=All&fieldValidation=Strict", body)
            if code == 201:
                unknown = (strict.get("message") or "").partition("strict decoding error: ")[2]
                answers[case] = {"spec": loose["spec"], "unknown": unknown}
            else:
                answers[case] = {"refused": loose["message"]}
        return answers

    def refusals(self, schema: dict[str, Json]) -> Json:
        code, answer = self._call("POST", f"{_CRDS}?dryRun=All", _definition("refused", schema))
        assert code in (201, 422), answer
        return _causes(answer)

    def _define(self, name: str, properties: dict[str, Json]) -> None:
        definition = _definition(name, obj({"spec": obj(properties)}))
        code, answer = self._call("POST", _CRDS, definition)
        assert code == 201, answer
        self._wait_for(name, properties)

    def _redefine(self, name: str, properties: dict[str, Json]) -> None:
        path = f"{_CRDS}/{name}s.schema.example"
        _, definition = self._call("GET", path)
        properties = {**properties, "probe": {"type": "integer"}}
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = obj({"spec": obj(properties)})
        code, answer = self._call("PUT", path, definition)
        assert code == 200, answer
        self._wait_for(name, properties)

    def _wait_for(self, name: str, properties: dict[str, Json]) -> None:
        """Wait until the new schema is enforced: it rejects an invalid probe, or accepts any object."""
        wanted = 422 if "probe" in properties else 201
        for _ in range(300):
            code, _ = self._call("POST", f"{_objects(name)}?dryRun=All", _object(name, 0, "probe", "wrong"))
            if code == wanted:
                return
            time.sleep(0.1)
        raise AssertionError(f"the schema of {name} did not come into force")

    def _call(self, method: str, path: str, body: Json = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, method=method, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                content = error.read()
            return error.code, json.loads(content) if content.startswith(b"{") else {"message": content.decode()}


def _objects(name: str) -> str:
    return f"/apis/schema.example/v1/namespaces/default/{name}s"


def _object(name: str, index: int, case: str, value: Json) -> Json:
    return {
        "apiVersion": "schema.example/v1",
        "kind": name.capitalize(),
        "metadata": {"name": f"c{index}"},
        "spec": {case: value},
    }


def _definition(name: str, schema: dict[str, Json]) -> Json:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": f"{name}s", "singular": name, "kind": name.capitalize(), "listKind": f"{name.capitalize()}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}s.schema.example"},
        "spec": {"group": "schema.example", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _causes(answer: Any) -> Json:
    if answer.get("kind") != "Status":
        return []
    causes = (answer.get("details") or {}).get("causes") or []
    return sorted([cause.get("reason"), cause.get("field"), cause.get("message")] for cause in causes)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, RealKube(Path(directory)) as kube:
        RECORDED.write_text(json.dumps(collect_answers(Server(kube)), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
