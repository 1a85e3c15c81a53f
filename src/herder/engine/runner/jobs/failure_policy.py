"""podFailurePolicy: which pod failures fail the Job, and which do not count."""

from __future__ import annotations

from herder.engine.meta.kinds import Object


def evaluate(job: Object, pod: Object) -> tuple[str, bool]:
    """Return the message if this failed pod fails the Job (else empty), and whether it counts towards the
    backoffLimit."""
    for position, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or ()):
        reported = _matches(rule, pod)
        if reported is None:
            continue
        action = rule["action"]
        if action == "FailJob":
            return f"{reported} matching {action} rule at index {position}", True
        return "", action != "Ignore"
    return "", True


def _matches(rule: Object, pod: Object) -> str | None:
    meta, status = pod["metadata"], pod.get("status", {})
    where = f"{meta.get('namespace', '')}/{meta['name']}"
    if codes := rule.get("onExitCodes"):
        for container in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            if _matches_code(codes, container):
                code = container["state"]["terminated"]["exitCode"]
                return f"Container {container['name']} for pod {where} failed with exit code {code}"
    for pattern in rule.get("onPodConditions") or ():
        for condition in status.get("conditions") or ():
            if (condition["type"], condition["status"]) == (pattern["type"], pattern.get("status", "True")):
                return f"Pod {where} has condition {condition['type']}"
    return None


def _matches_code(codes: Object, container: Object) -> bool:
    ended = (container.get("state") or {}).get("terminated")
    if not ended or not ended["exitCode"] or codes.get("containerName") not in (None, container["name"]):
        return False
    listed = ended["exitCode"] in codes["values"]
    return listed if codes["operator"] == "In" else not listed
