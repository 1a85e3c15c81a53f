"""Record the responses of a real kube-apiserver to every sample and every invalid object.

python -m tests.unit.engine.apiserver.builtin.record        (needs the peers; takes half a minute)
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from herder.engine.meta.kinds import Object
from tests.support.kube import RealKube
from tests.unit.engine.apiserver.builtin.driving import resource_of
from tests.unit.engine.apiserver.builtin.refusals import CREATES, UPDATES
from tests.unit.engine.apiserver.builtin.samples import SAMPLES

ANSWERS = Path(__file__).with_name("real_answers.json")
PROTOBUF = "application/vnd.kubernetes.protobuf"
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, RealKube(Path(directory)) as kube:
        answers = Recorder(kube).answers()
    ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def refusal(status: Object) -> Object:
    """Return what must agree: code, reason and causes, without Go field names in quoted values."""
    causes = (status.get("details") or {}).get("causes") or []
    comparable = sorted({(cause["reason"], cause["field"], _comparable(cause["message"])) for cause in causes})
    return {"code": status["code"], "reason": status["reason"], "causes": [list(item) for item in comparable]}


def without_uids(obj: Object) -> Object:
    return dict(json.loads(_UID.sub("<uid>", json.dumps(obj))))


def _comparable(message: str) -> str:
    return re.sub(r'(value: )\{"[A-Zs].*\}', r"\1{…}", _UID.sub("<uid>", message), flags=re.DOTALL)


class Recorder:
    def __init__(self, kube: RealKube) -> None:
        self.url = kube.url
        self.tls = ssl.create_default_context(cafile=str(kube.authority.path))
        self.tls.load_cert_chain(*map(str, kube.admin))

    def answers(self) -> Object:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self.ask("POST", path(account), account)
        return {
            "created": {key(sample): self.created(sample) for sample in SAMPLES},
            "protobuf": {key(sample): self.encoded(sample) for sample in SAMPLES},
            "creates": {name: self.refused(sample) for name, sample in CREATES.items()},
            "updates": {name: self.refused_update(*pair) for name, pair in UPDATES.items()},
        }

    def created(self, sample: Object) -> Object:
        code, body = self.ask("POST", f"{path(sample)}?dryRun=All", sample)
        assert code == 201, body
        for name in ("uid", "creationTimestamp", "managedFields", "namespace"):
            body["metadata"].pop(name, None)
        return without_uids(body)

    def encoded(self, sample: Object) -> str:
        _, body = self.ask("POST", f"{path(sample)}?dryRun=All", sample, accept=PROTOBUF)
        return base64.b64encode(body).decode()

    def refused(self, sample: Object) -> Object:
        code, body = self.ask("POST", f"{path(sample)}?dryRun=All", sample)
        assert code >= 400, body
        return refusal(body)

    def refused_update(self, old: Object, new: Object) -> Object:
        where = f"{path(old)}/{old['metadata']['name']}"
        code, created_object = self.ask("POST", path(old), old)
        assert code == 201, created_object
        changed = {
            **new,
            "metadata": {**new["metadata"], "resourceVersion": created_object["metadata"]["resourceVersion"]},
        }
        code, body = self.ask("PUT", f"{where}?dryRun=All", changed)
        self.ask("DELETE", where, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
        assert code >= 400, body
        return refusal(body)

    def ask(self, method: str, where: str, body: Object, accept: str = "application/json") -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Accept": accept}
        request = urllib.request.Request(self.url + where, json.dumps(body).encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls) as answer:
                content, code = answer.read(), answer.status
        except urllib.error.HTTPError as error:
            content, code = error.read(), error.code
        return code, content if accept == PROTOBUF else json.loads(content)


def key(sample: Object) -> str:
    return f"{sample['kind']}/{sample['metadata']['name']}"


def path(sample: Object) -> str:
    resource = resource_of(sample)
    version = sample["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/default/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


if __name__ == "__main__":
    main()
