"""Strategies of webhook configurations and admission policies."""

from __future__ import annotations

from urllib.parse import urlsplit

from herder.engine.apiserver.builtin.strategies import checks, expressions
from herder.engine.apiserver.builtin.strategies.base import BuiltinStrategy
from herder.engine.apiserver.builtin.strategies.checks import Errors, checked
from herder.engine.apiserver.registry.strategy import Context
from herder.engine.meta import names
from herder.engine.meta.errors import duplicate, invalid_value, not_supported, required, too_many
from herder.engine.meta.kinds import Object

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_NO_SIDE_EFFECTS = ("None", "NoneOnDryRun")


class WebhookConfigurationStrategy(BuiltinStrategy):
    def __init__(self, *, mutating: bool) -> None:
        super().__init__(generations=True)
        self.mutating = mutating

    def problems(self, obj: Object, context: Context) -> Errors:
        seen: set[str] = set()
        for position, hook in enumerate(obj.get("webhooks") or ()):
            at = f"webhooks[{position}]"
            yield from _webhook(hook, at)
            yield from _review_versions(hook.get("admissionReviewVersions") or [], f"{at}.admissionReviewVersions")
            if self.mutating:
                policy = hook.get("reinvocationPolicy")
                if policy not in {"Never", "IfNeeded"}:
                    yield not_supported(f"{at}.reinvocationPolicy", policy, ["IfNeeded", "Never"])
            if hook.get("name") in seen:
                yield duplicate(f"{at}.name", hook["name"])
            seen.add(hook.get("name", ""))


def _webhook(hook: Object, path: str) -> Errors:
    yield from _qualified(hook.get("name", ""), f"{path}.name")
    for position, rule in enumerate(hook.get("rules") or ()):
        yield from rule_with_operations(rule, f"{path}.rules[{position}]")
    for key, choices in (("failurePolicy", ("Fail", "Ignore")), ("matchPolicy", ("Equivalent", "Exact"))):
        if hook.get(key) is not None and hook[key] not in choices:
            yield not_supported(f"{path}.{key}", hook[key], choices)
    effects = hook.get("sideEffects")
    if effects is None:
        yield required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
    elif effects not in _NO_SIDE_EFFECTS:
        yield not_supported(f"{path}.sideEffects", effects, _NO_SIDE_EFFECTS)
    timeout = hook.get("timeoutSeconds")
    if timeout is not None and not 1 <= timeout <= 30:
        yield invalid_value(f"{path}.timeoutSeconds", timeout, "the timeout value must be between 1 and 30 seconds")
    for key in ("namespaceSelector", "objectSelector"):
        yield from checks.selector(hook.get(key), f"{path}.{key}")
    yield from client_config(hook.get("clientConfig") or {}, f"{path}.clientConfig")
    yield from match_conditions(hook.get("matchConditions") or [], f"{path}.matchConditions")


def _qualified(name: str, path: str) -> Errors:
    if not name:
        yield required(path)
        return
    problems = list(checked(name, path, names.dns1123_subdomain))
    yield from problems
    if not problems and name.count(".") < 2:
        yield invalid_value(path, name, "should be a domain with at least three segments separated by dots")


def _review_versions(versions: list[str], path: str) -> Errors:
    if not versions:
        yield required(path, "must specify one of v1, v1beta1")
        return
    seen: set[str] = set()
    for position, version in enumerate(versions):
        if version in seen:
            yield invalid_value(f"{path}[{position}]", version, "duplicate version")
        seen.add(version)
        yield from checked(version, f"{path}[{position}]", names.dns1035_label)
    if not seen & {"v1", "v1beta1"}:
        yield invalid_value(path, versions, "must include at least one of v1, v1beta1")


def rule_with_operations(rule: Object, path: str) -> Errors:
    operations = rule.get("operations") or []
    if not operations:
        yield required(f"{path}.operations")
    if len(operations) > 1 and "*" in operations:
        problem = "if '*' is present, must not specify other operations"
        yield invalid_value(f"{path}.operations", operations, problem)
    for position, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield not_supported(f"{path}.operations[{position}]", operation, _OPERATIONS)
    for key, label in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(key) or []
        if not values:
            yield required(f"{path}.{key}")
        if len(values) > 1 and "*" in values:
            yield invalid_value(f"{path}.{key}", values, f"if '*' is present, must not specify other {label}")
    for position, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            yield required(f"{path}.apiVersions[{position}]")
    yield from _resources(rule.get("resources") or [], f"{path}.resources")
    if rule.get("scope") is not None and rule["scope"] not in _SCOPES:
        yield not_supported(f"{path}.scope", rule["scope"], _SCOPES)


def _resources(resources: list[str], path: str) -> Errors:
    if not resources:
        yield required(path)
    for position, resource in enumerate(resources):
        if not resource:
            yield required(f"{path}[{position}]")
    if len(resources) > 1 and "*/*" in resources:
        yield invalid_value(path, resources, "if '*/*' is present, must not specify other resources")
    elif len(resources) > 1 and "*" in resources and any("/" not in item for item in resources if item != "*"):
        problem = "if '*' is present, must not specify other resources without subresources"
        yield invalid_value(path, resources, problem)


def client_config(config: Object, path: str) -> Errors:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        yield required(path, "exactly one of url or service is required")
    elif url is not None:
        yield from _url(url, f"{path}.url")
    elif service is not None:
        yield from _service(service, f"{path}.service")


def _url(url: str, path: str) -> Errors:
    form = "; desired format: https://host[/path]"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        yield required(path, f"url must be a valid URL: {error}{form}")
        return
    if parts.scheme != "https":
        yield invalid_value(path, parts.scheme, f"'https' is the only allowed URL scheme{form}")
    if not parts.hostname:
        yield invalid_value(path, parts.netloc, f"host must be specified{form}")
    if parts.username is not None:
        yield invalid_value(path, parts.username, "user information is not permitted in the URL")
    if parts.fragment:
        yield invalid_value(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        yield invalid_value(path, parts.query, "query parameters are not permitted in the URL")


def _service(service: Object, path: str) -> Errors:
    if not service.get("name"):
        yield required(f"{path}.name")
    if not service.get("namespace"):
        yield required(f"{path}.namespace")
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        yield invalid_value(f"{path}.port", port, f"port is not valid: {checks.PORT_RANGE}")
    if service.get("path") is not None:
        yield from _url_path(service["path"], f"{path}.path")


def _url_path(value: str, path: str) -> Errors:
    if not value.startswith("/"):
        yield invalid_value(path, value, "must start with a '/'")
    if value.strip() == "/":
        return
    segments = value[1:].removesuffix("/").split("/")
    for position, segment in enumerate(segments):
        if not segment:
            yield invalid_value(path, value, f"segment[{position}] may not be empty")
        else:
            yield from (
                invalid_value(path, value, f"segment[{position}]: {problem}")
                for problem in names.dns1123_subdomain(segment)
            )


def match_conditions(conditions: list[Object], path: str, *, params: bool = False) -> Errors:
    seen: set[str] = set()
    if len(conditions) > 64:
        yield too_many(path, len(conditions), 64)
        return
    for position, condition in enumerate(conditions):
        at, name = f"{path}[{position}]", condition.get("name", "")
        if not name:
            yield required(f"{at}.name")
        else:
            yield from checked(name, f"{at}.name", names.qualified_name)
        if name and name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        if not condition.get("expression", "").strip():
            yield required(f"{at}.expression")
        else:
            yield from expressions.condition(condition["expression"], f"{at}.expression", params=params)


class AdmissionPolicyStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        constraints = spec.get("matchConstraints")
        if constraints is None:
            yield required("spec.matchConstraints")
        else:
            rules = constraints.get("resourceRules") or []
            if not rules:
                yield required("spec.matchConstraints.resourceRules")
            for position, rule in enumerate(rules):
                yield from rule_with_operations(rule, f"spec.matchConstraints.resourceRules[{position}]")
        has_params = spec.get("paramKind") is not None
        yield from match_conditions(spec.get("matchConditions") or [], "spec.matchConditions", params=has_params)
        yield from expressions.policy(spec)


class AdmissionPolicyBindingStrategy(BuiltinStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        spec = obj.get("spec") or {}
        if not spec.get("policyName"):
            yield required("spec.policyName")
        else:
            yield from checked(spec["policyName"], "spec.policyName", names.dns1123_subdomain)


class ValidatingPolicyBindingStrategy(AdmissionPolicyBindingStrategy):
    def problems(self, obj: Object, context: Context) -> Errors:
        yield from super().problems(obj, context)
        actions = (obj.get("spec") or {}).get("validationActions") or []
        if not actions:
            yield required("spec.validationActions", "")
        for position, action in enumerate(actions):
            if action not in {"Deny", "Warn", "Audit"}:
                at = f"spec.validationActions[{position}]"
                yield not_supported(at, action, ["Audit", "Deny", "Warn"])
        if {"Deny", "Warn"} <= set(actions):
            problem = (
                "must not contain both Deny and Warn (repeating the same validation failure information in the API "
                "response and headers serves no purpose)"
            )
            yield invalid_value("spec.validationActions", actions, problem)
