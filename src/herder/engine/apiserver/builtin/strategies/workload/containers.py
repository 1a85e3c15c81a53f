"""Validate containers of pods and templates: names, images, ports, environment, mounts, probes and resources."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from herder.engine.apiserver.builtin.strategies.checks import (
    Errors,
    checked,
    not_negative,
    one_of,
    port_name,
    port_number,
    port_number_or_name,
)
from herder.engine.meta import names, quantity
from herder.engine.meta.errors import (
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_value,
    not_supported,
    required,
)
from herder.engine.meta.kinds import Object

PROTOCOLS = ("SCTP", "TCP", "UDP")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_OVERCOMMITTED = {"cpu", "memory", "ephemeral-storage", "storage"}


def containers(items: list[Object] | None, path: str, volumes: set[str]) -> Errors:
    if not items:
        yield required(path)
        return
    seen: set[str] = set()
    for position, item in enumerate(items):
        at = f"{path}[{position}]"
        yield from _container(item, at, volumes)
        if item.get("name") in seen:
            yield duplicate(f"{at}.name", item["name"])
        seen.add(item.get("name", ""))
        yield from _probes(item, at)
    yield from _host_port_conflicts(items, path)


def init_containers(items: list[Object] | None, path: str, volumes: set[str], regular: Iterable[str]) -> Errors:
    seen = set(regular)
    for position, item in enumerate(items or ()):
        at = f"{path}[{position}]"
        yield from _container(item, at, volumes)
        if item.get("name") in seen:
            yield duplicate(f"{at}.name", item["name"])
        seen.add(item.get("name", ""))
        if item.get("restartPolicy") == "Always":
            yield from _probes(item, at)
            continue
        if item.get("restartPolicy") is not None and item["restartPolicy"] not in {"OnFailure", "Never"}:
            yield not_supported(f"{at}.restartPolicy", item["restartPolicy"], ["Always", "Never", "OnFailure"])
        for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            if item.get(key) is not None:
                yield forbidden_field(f"{at}.{key}", "may not be set for init containers without restartPolicy=Always")


def _container(item: Object, path: str, volumes: set[str]) -> Errors:
    if not item.get("name"):
        yield required(f"{path}.name")
    else:
        yield from checked(item["name"], f"{path}.name", names.dns1123_label)
    if not item.get("image"):
        yield required(f"{path}.image")
    yield from one_of(item.get("terminationMessagePolicy"), f"{path}.terminationMessagePolicy", _MESSAGE_POLICIES)
    yield from _ports(item.get("ports") or (), f"{path}.ports")
    yield from environment(item.get("env") or (), f"{path}.env")
    yield from _environment_from(item.get("envFrom") or (), f"{path}.envFrom")
    yield from _mounts(item.get("volumeMounts") or (), f"{path}.volumeMounts", volumes)
    yield from one_of(item.get("imagePullPolicy"), f"{path}.imagePullPolicy", _PULL_POLICIES)
    yield from resources(item.get("resources") or {}, f"{path}.resources")
    yield from _security(item.get("securityContext") or {}, f"{path}.securityContext")


# --- ports ------------------------------------------------------------------------------------------------------


def _ports(ports: Iterable[Object], path: str) -> Errors:
    seen: set[str] = set()
    for position, port in enumerate(ports):
        at, name = f"{path}[{position}]", port.get("name")
        if name:
            if port_name(name):
                yield from checked(name, f"{at}.name", port_name)
            elif name in seen:
                yield duplicate(f"{at}.name", name)
            else:
                seen.add(name)
        if not port.get("containerPort"):
            yield required(f"{at}.containerPort")
        else:
            yield from port_number(port["containerPort"], f"{at}.containerPort")
        if port.get("hostPort"):
            yield from port_number(port["hostPort"], f"{at}.hostPort")
        yield from one_of(port.get("protocol"), f"{at}.protocol", PROTOCOLS)


def _host_port_conflicts(items: Iterable[Object], path: str) -> Errors:
    seen: set[tuple[Any, ...]] = set()
    for index, item in enumerate(items):
        for position, port in enumerate(item.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            key = (port.get("protocol"), port.get("hostIP", ""), port["hostPort"])
            if key in seen:
                shown = "/".join(str(part) for part in key)
                yield duplicate(f"{path}[{index}].ports[{position}].hostPort", shown)
            seen.add(key)


# --- environment ------------------------------------------------------------------------------------------------

_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_FIELD_PATHS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
# Selectable fields that cannot be used in the environment.
_OTHER_FIELD_PATHS = ("metadata.labels", "metadata.annotations", "spec.restartPolicy", "spec.schedulerName",
                      "spec.hostNetwork", "status.phase", "status.nominatedNodeName")  # fmt: skip
_SUBSCRIPTED = re.compile(r"metadata\.(labels|annotations)\['.+'\]\Z")


def environment(variables: Iterable[Object], path: str) -> Errors:
    for position, variable in enumerate(variables):
        at, name = f"{path}[{position}]", variable.get("name", "")
        if not name:
            yield required(f"{at}.name")
        elif any(not 0x20 <= ord(letter) <= 0x7E or letter == "=" for letter in name):
            problem = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield invalid_value(f"{at}.name", name, problem)
        source = variable.get("valueFrom")
        if source is not None:
            yield from _value_from(variable, source, f"{at}.valueFrom")


def _value_from(variable: Object, source: Object, path: str) -> Errors:
    message = [key for key in _SOURCES if source.get(key) is not None]
    for key in message:
        if key == "fieldRef":
            yield from _field_reference(source[key], f"{path}.fieldRef")
        elif key in {"configMapKeyRef", "secretKeyRef"}:
            yield from key_reference(source[key], f"{path}.{key}")
    if not message:
        choices = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        yield invalid_value(path, "", f"must specify one of: {choices}")
    elif variable.get("value"):
        yield invalid_value(path, "", "may not be specified when `value` is not empty")
    elif len(message) > 1:
        yield invalid_value(path, "", "may not have more than one field specified at a time")


def _field_reference(reference: Object, path: str) -> Errors:
    if not reference.get("apiVersion"):
        yield required(f"{path}.apiVersion")
        return
    field = reference.get("fieldPath", "")
    if not field:
        yield required(f"{path}.fieldPath")
    elif not _SUBSCRIPTED.match(field) and field not in _FIELD_PATHS:
        if field in _OTHER_FIELD_PATHS:
            yield not_supported(f"{path}.fieldPath", field, sorted(_FIELD_PATHS))
        else:
            problem = f"error converting fieldPath: field label not supported: {field}"
            yield invalid_value(f"{path}.fieldPath", field, problem)


def key_reference(reference: Object, path: str) -> Errors:
    """Validate a reference to a key of a ConfigMap or Secret."""
    if not reference.get("name"):
        yield required(f"{path}.name")
    if not reference.get("key"):
        yield required(f"{path}.key")
    else:
        yield from checked(reference["key"], f"{path}.key", names.config_key)


def _environment_from(sources: Iterable[Object], path: str) -> Errors:
    for position, source in enumerate(sources):
        at = f"{path}[{position}]"  # kube-apiserver reports some errors on the list instead of the item
        message = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
        for key in message:
            if not source[key].get("name"):
                yield required(f"{at}.{key}.name")
        if not message:
            yield invalid_value(path, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(message) > 1:
            yield invalid_value(path, "", "may not have more than one field specified at a time")


# --- mounts, probes, resources ----------------------------------------------------------------------------------


def _mounts(mounts: Iterable[Object], path: str, volumes: set[str]) -> Errors:
    seen: set[str] = set()
    for position, mount in enumerate(mounts):
        at, where = f"{path}[{position}]", mount.get("mountPath", "")
        if not mount.get("name"):
            yield required(f"{at}.name")
        if mount.get("name", "") not in volumes:
            yield not_found_value(f"{at}.name", mount.get("name", ""))
        if not where:
            yield required(f"{at}.mountPath")
        if where in seen:
            yield invalid_value(f"{at}.mountPath", where, "must be unique")
        seen.add(where)
        for key in ("subPath", "subPathExpr"):
            yield from descending_path(mount.get(key, ""), f"{path}.{key}")


def descending_path(value: str, path: str) -> Errors:
    if value.startswith("/"):
        yield invalid_value(path, value, "must be a relative path")
    if ".." in value.split("/"):
        yield invalid_value(path, value, "must not contain '..'")


_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")


def _probes(item: Object, path: str) -> Errors:
    for hook in ("postStart", "preStop"):
        handler = (item.get("lifecycle") or {}).get(hook)
        if handler is not None:
            yield from _handler(handler, f"{path}.lifecycle.{hook}")
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = item.get(key)
        if probe is None:
            continue
        at = f"{path}.{key}"
        yield from _handler(probe, at)
        for number in _PROBE_NUMBERS:
            yield from not_negative(probe.get(number), f"{at}.{number}")
        grace = probe.get("terminationGracePeriodSeconds")
        if grace is not None and grace <= 0:
            yield invalid_value(f"{at}.terminationGracePeriodSeconds", grace, "must be greater than 0")
        if key != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            yield invalid_value(f"{at}.successThreshold", probe["successThreshold"], "must be 1")
        if key == "readinessProbe" and grace is not None:
            problem = "must not be set for readinessProbes"
            yield invalid_value(f"{at}.terminationGracePeriodSeconds", grace, problem)


def _handler(handler: Object, path: str) -> Errors:
    message = [key for key in _HANDLERS if handler.get(key) is not None]
    if not message:
        yield required(path, "must specify a handler type")
        return
    first = message[0]
    if first == "exec" and not handler["exec"].get("command"):
        yield required(f"{path}.exec.command")
    if first in {"httpGet", "tcpSocket"}:
        if first == "httpGet" and not handler[first].get("path"):
            yield required(f"{path}.httpGet.path")
        yield from port_number_or_name(handler[first].get("port"), f"{path}.{first}.port")
        if first == "httpGet":
            yield from one_of(handler[first].get("scheme"), f"{path}.httpGet.scheme", ("HTTP", "HTTPS"))
    if first == "grpc":
        yield from port_number(handler["grpc"].get("port"), f"{path}.grpc.port")
    for other in message[1:]:
        yield forbidden_field(f"{path}.{other}", "may not specify more than 1 handler type")


def resources(requirements: Object, path: str) -> Errors:
    limits, requests = requirements.get("limits") or {}, requirements.get("requests") or {}
    for key, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            yield from _resource_name(name, f"{path}.{key}[{name}]")
            if quantity.parse(value).sign < 0:
                yield invalid_value(f"{path}.{key}[{name}]", value, "must be greater than or equal to 0")
    for name, value in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not _may_overcommit(name):
                yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif quantity.parse(value).compare(quantity.parse(limit)) != 0 and not _may_overcommit(name):
            yield invalid_value(f"{path}.requests", value, f"must be equal to {name} limit of {limit}")
        elif quantity.parse(value).compare(quantity.parse(limit)) > 0:
            yield invalid_value(f"{path}.requests", value, f"must be less than or equal to {name} limit of {limit}")


def _may_overcommit(name: str) -> bool:
    return "/" not in name and not name.startswith("hugepages-")


def _resource_name(name: str, path: str) -> Errors:
    yield from checked(name, path, names.qualified_name)
    if "/" not in name and name not in _OVERCOMMITTED and not name.startswith("hugepages-"):
        yield invalid_value(path, name, "must be a standard resource type or fully qualified")
        yield invalid_value(path, name, "must be a standard resource for containers")


def _security(context: Object, path: str) -> Errors:
    for key in ("runAsUser", "runAsGroup"):
        value = context.get(key)
        if value is not None and not 0 <= value <= (1 << 31) - 1:
            yield invalid_value(f"{path}.{key}", value, "must be between 0 and 2147483647, inclusive")
    if context.get("allowPrivilegeEscalation") is False and context.get("privileged"):
        problem = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield invalid_value(path, context, problem)
