"""Write the default RBAC policy as data, from the objects that a new kube-apiserver creates.

kubectl get clusterroles,clusterrolebindings,roles,rolebindings -A -o json | python tools/dump_bootstrap_policy.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "src/herder/engine/apiserver/auth/data/bootstrap_policy.json"
BOOTSTRAPPING = "kubernetes.io/bootstrapping"
FIELDS = ("aggregationRule", "rules", "roleRef", "subjects")


def reduce_object(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    result: dict[str, Any] = {"kind": obj["kind"]}
    if metadata.get("namespace"):
        result["namespace"] = metadata["namespace"]
    result["name"] = metadata["name"]
    labels = {key: value for key, value in metadata["labels"].items() if key != BOOTSTRAPPING}
    if labels:
        result["labels"] = labels
    return result | {field: obj[field] for field in FIELDS if obj.get(field)}


def main() -> None:
    items = json.load(sys.stdin)["items"]
    policy = [reduce_object(item) for item in items if (item["metadata"].get("labels") or {}).get(BOOTSTRAPPING)]
    policy.sort(key=lambda item: (item["kind"], item.get("namespace", ""), item["name"]))
    TARGET.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in policy)
    TARGET.write_text(f"[\n{lines}\n]\n")
    print(f"{TARGET.name}: {len(policy)} objects")


if __name__ == "__main__":
    main()
