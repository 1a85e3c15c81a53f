"""How a cluster is changed, saved and filled: what no schema can say of drains, schedules and manifests."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from herder.api.capi.admission.values import section, value
from herder.api.rke.admission.places import PATH, RKE
from herder.api.rke.cron import problem_of
from herder.engine.meta.errors import FieldError, invalid_value, required
from herder.engine.meta.kinds import Object

_LOWEST = {"gracePeriod": -1, "timeout": 0, "skipWaitForDeleteTimeoutSeconds": 0}
_AS_THE_POD_SAYS = "; -1 is what the pod itself says"


def validate(obj: Object, old: Object | None) -> Iterator[FieldError]:
    for options in ("controlPlaneDrainOptions", "workerDrainOptions"):
        asked, before = (section(each, *RKE, "upgradeStrategy", options) for each in (obj, old or {}))
        if asked != before:
            yield from _drain(asked, f"{PATH}.upgradeStrategy.{options}")
    schedule, known = (value(each, *RKE, "etcd", "snapshotScheduleCron") for each in (obj, old or {}))
    if schedule and schedule != known and (problem := problem_of(schedule)):
        yield invalid_value(f"{PATH}.etcd.snapshotScheduleCron", schedule, f"{problem}; 0 */6 * * * is every six hours")
    manifest, known = (value(each, *RKE, "additionalManifest") for each in (obj, old or {}))
    if manifest and manifest != known:
        yield from _manifest(manifest, f"{PATH}.additionalManifest")


def _drain(options: Object, path: str) -> Iterator[FieldError]:
    for field, lowest in _LOWEST.items():
        if (options.get(field) or 0) < lowest:
            told = f"must be at least {lowest}{_AS_THE_POD_SAYS if lowest < 0 else ''}"
            yield invalid_value(f"{path}.{field}", options[field], told)
    for hooks in ("preDrainHooks", "postDrainHooks"):
        for position, hook in enumerate(options.get(hooks) or ()):
            if not hook.get("annotation"):
                told = "what is to be waited for on the plan Secret of a machine"
                yield required(f"{path}.{hooks}[{position}].annotation", told)


def _manifest(text: str, path: str) -> Iterator[FieldError]:
    """What stands in it is not told: answers are logged, and there may be secrets in it."""
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}" if mark else ""
        yield invalid_value(path, "text", f"must be YAML: {error.problem or error.context}{where}")
        return
    except (yaml.YAMLError, ValueError, RecursionError):
        yield invalid_value(path, "text", "must be YAML")
        return
    for position, document in enumerate(documents):
        if not _is_object(document):
            told = f"its document {position + 1} must be an object with apiVersion and kind"
            yield invalid_value(path, "text", told)


def _is_object(document: yaml.Node | None) -> bool:
    """Or nothing at all, as between two lines of ---."""
    if document is None or document.tag == "tag:yaml.org,2002:null":
        return True
    keys = {key.value for key, _ in document.value} if isinstance(document, yaml.MappingNode) else set()
    return {"apiVersion", "kind"} <= keys
