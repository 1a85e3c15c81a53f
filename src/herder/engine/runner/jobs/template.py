"""Pod construction from a Job's template."""

from __future__ import annotations

import copy

from herder.engine.meta.kinds import Object
from herder.engine.runner.jobs.indexes import ANNOTATION

FINALIZER = "batch.kubernetes.io/job-tracking"
_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def pod_for(job: Object, index: int | None) -> Object:
    """Return the pod for a Job, and for a completion index if the Job is Indexed."""
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    annotations = dict((template.get("metadata") or {}).get("annotations") or {})
    finalizers = [*((template.get("metadata") or {}).get("finalizers") or ()), FINALIZER]
    prefix = f"{meta['name']}-"
    if index is not None:
        prefix += f"{index}-"
        labels[ANNOTATION] = annotations[ANNOTATION] = str(index)
        _add_index(template["spec"], meta["name"], index)
    pod_meta: Object = {
        "generateName": prefix,
        "namespace": meta["namespace"],
        "labels": labels,
        "finalizers": finalizers,
        "ownerReferences": [owner_reference(job)],
    }
    if annotations:
        pod_meta["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": template["spec"]}


def owner_reference(job: Object) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _add_index(spec: Object, job: str, index: int) -> None:
    spec["hostname"] = f"{job}-{index}"
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION}']"}}
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        variables = container.setdefault("env", [])
        if not any(variable["name"] == _INDEX_VARIABLE for variable in variables):
            variables.append({"name": _INDEX_VARIABLE, "valueFrom": source})
