"""Strategies of Jobs and CronJobs."""

from __future__ import annotations

import copy
import re
import zoneinfo
from collections.abc import Iterable
from pathlib import Path

from herder.engine.apiserver.builtin.strategies import checks
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, not_negative, unchanged
from herder.engine.apiserver.builtin.strategies.warnings import pod_name, pod_warnings
from herder.engine.apiserver.builtin.strategies.workload.podspec import pod_template
from herder.engine.apiserver.builtin.strategies.workload.schedule import check_schedule
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import invalid_value, not_supported, required, too_long, too_many
from herder.engine.meta.kinds import Object

UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
_LEGACY_UID_LABEL, _LEGACY_NAME_LABEL = "controller-uid", "job-name"
_MAX_PARALLELISM = _MAX_FAILED_INDEXES = 100_000
_MAX_POLICY_RULES = 20


class JobStrategy(BuiltinStrategy):
    default_propagation = "Orphan"

    def __init__(self) -> None:
        super().__init__(generations=True, status="batch.v1.JobStatus")

    def prepare_create(self, obj: Object, context: Context) -> None:
        super().prepare_create(obj, context)
        metadata, template = obj["metadata"], obj["spec"].setdefault("template", {}).setdefault("metadata", {})
        # A Job without labels gets those of its pods, including the generated ones.
        inherits = not metadata.get("labels") or metadata["labels"] == template.get("labels")
        if not obj["spec"].get("manualSelector"):
            generate_selector(obj)
        if inherits and template.get("labels"):
            metadata["labels"] = dict(template["labels"])

    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj["spec"]
        if not spec.get("manualSelector"):
            yield from _generated_selector(obj)
        yield from job_spec(spec, "spec")
        if spec.get("selector") is None:
            yield required("spec.selector")
        else:
            yield from checks.selector(spec["selector"], "spec.selector")
        template_labels = (spec["template"].get("metadata") or {}).get("labels")
        yield from checks.selects(spec.get("selector"), template_labels, "spec.template.metadata.labels")
        if spec.get("completionMode") == "Indexed" and (spec.get("completions") or 0) > 0:
            hostname = f"{obj['metadata'].get('name', '')}-{spec['completions'] - 1}"
            if names.dns1123_label(hostname):
                problem = f"will not able to create pod with invalid DNS label: {hostname}"
                yield invalid_value("metadata.name", obj["metadata"].get("name", ""), problem)

    def validate_update(self, obj: Object, old: Object, context: Context) -> Errors:
        if context.subresource:
            return
        spec, before = obj["spec"], old["spec"]
        yield from _completions(spec, before)
        yield from unchanged(spec.get("selector"), before.get("selector"), "spec.selector")
        yield from _template_unchanged(spec["template"], old)
        for key in ("completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"):
            yield from unchanged(spec.get(key), before.get(key), f"spec.{key}")

    def fields(self, obj: Object) -> dict[str, str]:
        return {"status.successful": str(obj.get("status", {}).get("succeeded", 0))}

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        named = pod_name(obj) if old is None else ()
        return [*named, *pod_warnings(obj["spec"]["template"].get("spec") or {}, "spec.template.spec")]


def generate_selector(job: Object) -> None:
    """Select by the Job's uid, so that two Jobs never select each other's pods."""
    metadata, spec = job["metadata"], job["spec"]
    template = spec.setdefault("template", {}).setdefault("metadata", {})
    labels = template.setdefault("labels", {})
    for key in (_LEGACY_NAME_LABEL, NAME_LABEL):
        labels.setdefault(key, metadata["name"])
    for key in (_LEGACY_UID_LABEL, UID_LABEL):
        labels.setdefault(key, metadata["uid"])
    selector = spec.get("selector") or {}
    spec["selector"] = selector
    selector.setdefault("matchLabels", {}).setdefault(UID_LABEL, metadata["uid"])


def _generated_selector(job: Object) -> Errors:
    metadata, spec = job["metadata"], job["spec"]
    if spec.get("selector") is None:
        return
    expected = {
        UID_LABEL: metadata.get("uid", ""), NAME_LABEL: metadata.get("name", ""),
        _LEGACY_UID_LABEL: metadata.get("uid", ""), _LEGACY_NAME_LABEL: metadata.get("name", ""),
    }  # fmt: skip
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    for key in (_LEGACY_UID_LABEL, _LEGACY_NAME_LABEL, UID_LABEL, NAME_LABEL):
        at = "spec.template.metadata.labels"
        if key not in labels:
            yield required(at, f"must be '{expected[key]}'")
        elif labels[key] != expected[key]:
            yield invalid_value(at, labels, f"must be '{expected[key]}'")
    if list(checks.selects(spec["selector"], expected, "")):
        yield invalid_value("spec.selector", spec["selector"], "`selector` not auto-generated")


def job_spec(spec: Object, path: str) -> Errors:
    for key in (
        "parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished",
        "backoffLimitPerIndex", "maxFailedIndexes",
    ):  # fmt: skip
        yield from not_negative(spec.get(key), f"{path}.{key}")
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield required(f"{path}.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if spec.get("managedBy") is not None:
        yield from _managed_by(spec["managedBy"], f"{path}.managedBy")
    yield from _completion_mode(spec, path)
    yield from _policies(spec, path)
    template = spec.get("template") or {}
    yield from pod_template(template, f"{path}.template")
    yield from _restart_policy(spec, template, f"{path}.template.spec.restartPolicy")


def _managed_by(value: str, path: str) -> Errors:
    domain, slash, rest = value.partition("/")
    if not value:
        yield required(path)
    elif not slash or not domain or not rest:
        yield invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
    if len(value) > 63:
        yield too_long(path, 63)


def _completion_mode(spec: Object, path: str) -> Errors:
    mode = spec.get("completionMode")
    if mode is not None and mode not in {"NonIndexed", "Indexed"}:
        yield not_supported(f"{path}.completionMode", mode, ["NonIndexed", "Indexed"])
    completions, failed = spec.get("completions"), spec.get("maxFailedIndexes")
    if mode == "Indexed":
        if completions is None:
            yield required(f"{path}.completions", "when completion mode is Indexed")
        if (spec.get("parallelism") or 0) > _MAX_PARALLELISM:
            problem = f"must be less than or equal to {_MAX_PARALLELISM} when completion mode is Indexed"
            yield invalid_value(f"{path}.parallelism", spec["parallelism"], problem)
        if completions is not None and failed is not None and failed > completions:
            yield invalid_value(f"{path}.maxFailedIndexes", failed, "must be less than or equal to completions")
        if failed is not None and failed > _MAX_FAILED_INDEXES:
            problem = f"must be less than or equal to {_MAX_FAILED_INDEXES}"
            yield invalid_value(f"{path}.maxFailedIndexes", failed, problem)
    elif mode in {None, "NonIndexed"}:
        for key in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(key) is not None:
                yield invalid_value(f"{path}.{key}", spec[key], "requires indexed completion mode")


def _policies(spec: Object, path: str) -> Errors:
    failure = spec.get("podFailurePolicy")
    rules = (failure or {}).get("rules") or []
    if len(rules) > _MAX_POLICY_RULES:
        yield too_many(f"{path}.podFailurePolicy.rules", len(rules), _MAX_POLICY_RULES)
    for position, rule in enumerate(rules):
        at = f"{path}.podFailurePolicy.rules[{position}]"
        yield from checks.one_of(rule.get("action"), f"{at}.action", ("Count", "FailIndex", "FailJob", "Ignore"))
        if (rule.get("onExitCodes") is None) == (not rule.get("onPodConditions")):
            problem = "specifying both OnExitCodes and OnPodConditions is not supported"
            if rule.get("onExitCodes") is None:
                problem = "specifying one of OnExitCodes and OnPodConditions is required"
            yield invalid_value(at, rule, problem)
    if spec.get("successPolicy") is not None and spec.get("completionMode") != "Indexed":
        yield invalid_value(f"{path}.successPolicy", spec["successPolicy"], "requires indexed completion mode")
    replacement = spec.get("podReplacementPolicy")
    if replacement is not None:
        choices = ["Failed"] if failure is not None else ["Failed", "TerminatingOrFailed"]
        if replacement not in choices:
            yield not_supported(f"{path}.podReplacementPolicy", replacement, choices)


def _restart_policy(spec: Object, template: Object, path: str) -> Errors:
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy in {None, "", "Always"}:
        yield required(path, 'valid values: "OnFailure", "Never"')
    elif policy not in {"OnFailure", "Never"}:
        yield not_supported(path, policy, ["OnFailure", "Never"])
    elif spec.get("podFailurePolicy") is not None and policy != "Never":
        yield invalid_value(path, policy, 'only "Never" is supported when podFailurePolicy is specified')


def _completions(spec: Object, before: Object) -> Errors:
    if spec.get("completionMode") != "Indexed":
        yield from unchanged(spec.get("completions"), before.get("completions"), "spec.completions")
        return
    wanted = spec.get("completions")
    if wanted not in {None, before.get("completions"), spec.get("parallelism")}:
        yield invalid_value("spec.completions", wanted, "can only be modified in tandem with spec.parallelism")


def _template_unchanged(wanted: Object, old: Object) -> Errors:
    """Only a suspended Job may change the resources and scheduling of its pod template."""
    template: Object = old["spec"]["template"]
    if not old["spec"].get("suspend"):
        yield from unchanged(wanted, template, "spec.template")
        return
    kept = copy.deepcopy(template["spec"])
    for key in ("nodeSelector", "tolerations", "schedulingGates", "affinity"):
        _copy_field(kept, wanted["spec"], key)
    for key in ("containers", "initContainers"):
        for container, changed in zip(kept.get(key) or (), wanted["spec"].get(key) or (), strict=False):
            _copy_field(container, changed, "resources")
    yield from unchanged(wanted["spec"], kept, "spec.template.spec")


def _copy_field(into: Object, source: Object, key: str) -> None:
    if key in source:
        into[key] = source[key]
    else:
        into.pop(key, None)


class CronJobStrategy(BuiltinStrategy):
    def __init__(self) -> None:
        super().__init__(generations=True, status="batch.v1.CronJobStatus")

    def problems(self, obj: Object, context: Context) -> Errors:
        spec, name = obj["spec"], obj["metadata"].get("name", "")
        schedule, zone = spec.get("schedule", ""), spec.get("timeZone")
        if not schedule:
            yield required("spec.schedule")
        else:
            problem = check_schedule(schedule)
            if problem:
                yield invalid_value("spec.schedule", schedule, problem)
            if "TZ" in schedule:
                yield invalid_value(
                    "spec.schedule", schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
                )
        yield from not_negative(spec.get("startingDeadlineSeconds"), "spec.startingDeadlineSeconds")
        if zone is not None:
            yield from time_zone(zone, "spec.timeZone")
        policies = ("Allow", "Forbid", "Replace")
        yield from checks.one_of(spec.get("concurrencyPolicy"), "spec.concurrencyPolicy", policies)
        yield from _job_template(spec.get("jobTemplate") or {}, "spec.jobTemplate")
        for key in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit"):
            yield from not_negative(spec.get(key), f"spec.{key}")
        if len(name) > 52:
            yield invalid_value("metadata.name", name, "must be no more than 52 characters")

    def warnings(self, obj: Object, old: Object | None) -> Iterable[str]:
        template = (obj["spec"].get("jobTemplate") or {}).get("spec", {}).get("template") or {}
        named = pod_name(obj) if old is None else ()
        return [*named, *pod_warnings(template.get("spec") or {}, "spec.jobTemplate.spec.template.spec")]


def _job_template(template: Object, path: str) -> Errors:
    spec = template.get("spec") or {}
    if spec.get("manualSelector"):
        yield not_supported(f"{path}.spec.manualSelector", spec["manualSelector"], ["nil", "false"])
    yield from job_spec(spec, f"{path}.spec")


_ZONE_PART = re.compile(r"[A-Za-z0-9._+-]{1,}\Z")


def time_zone(zone: str, path: str) -> Errors:
    if not zone:
        yield invalid_value(path, zone, "timeZone must be nil or non-empty string")
        return
    parts = zone.split("/")
    if any(part in {".", ".."} or part.startswith("-") or not _ZONE_PART.match(part) for part in parts):
        yield invalid_value(path, zone, f"unknown time zone {zone}")
        return
    if zone.lower() == "local":
        explicit = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        yield invalid_value(path, zone, explicit)
    elif not _is_known_zone(zone):
        yield invalid_value(path, zone, f"unknown time zone {zone}")


def _is_known_zone(zone: str) -> bool:
    """Whether the time zone exists. Every zone is accepted if the host has no time zone database."""
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return not any(Path(directory).is_dir() for directory in zoneinfo.TZPATH)
    return True
