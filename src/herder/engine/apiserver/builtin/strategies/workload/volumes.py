"""Validate volumes of pods and templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from herder.engine.apiserver.builtin.strategies.checks import Errors, checked
from herder.engine.meta import names
from herder.engine.meta.errors import FieldError, duplicate, forbidden_field, invalid_value, required
from herder.engine.meta.kinds import Object


def volumes(items: Iterable[Object], path: str) -> tuple[set[str], list[FieldError]]:
    """Return the names that mounts may use (those of valid volumes), and the errors of the others."""
    good: set[str] = set()
    problems: list[FieldError] = []
    for position, volume in enumerate(items):
        at, name = f"{path}[{position}]", volume.get("name", "")
        found = list(_source(volume, at))
        if not name:
            found.append(required(f"{at}.name"))
        else:
            found += checked(name, f"{at}.name", names.dns1123_label)
        if name in good:
            found.append(duplicate(f"{at}.name", name))
        if found:
            problems += found
        else:
            good.add(name)
    return good, problems


def _source(volume: Object, path: str) -> Errors:
    message = [key for key, value in volume.items() if key != "name" and value is not None]
    message.sort(key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))
    if not message:
        yield required(path, "must specify a volume type")
        return
    check = _CHECKS.get(message[0])
    if check is not None:
        yield from check(volume[message[0]], f"{path}.{message[0]}")
    for other in message[1:]:
        yield forbidden_field(f"{path}.{other}", "may not specify more than 1 volume type")


def _needs(*keys: str) -> Callable[[Object, str], Errors]:
    def check(source: Object, path: str) -> Errors:
        for key in keys:
            if not source.get(key):
                yield required(f"{path}.{key}")

    return check


def _mode(value: int | None, path: str) -> Errors:
    if value is not None and not 0 <= value <= 0o777:
        yield invalid_value(path, value, "must be a number between 0 and 0777 (octal), both inclusive")


def _items(source: Object, path: str) -> Errors:
    yield from _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for position, item in enumerate(source.get("items") or ()):
        at = f"{path}.items[{position}]"
        if "key" in item and not item["key"]:
            yield required(f"{at}.key")
        if not item.get("path"):
            yield required(f"{at}.path")
        else:
            yield from _local_path(item["path"], f"{at}.path")
        yield from _mode(item.get("mode"), f"{at}.mode")


def _local_path(value: str, path: str) -> Errors:
    if value.startswith("/"):
        yield invalid_value(path, value, "must be a relative path")
    if ".." in value.split("/"):
        yield invalid_value(path, value, "must not contain '..'")
    elif value.startswith(".."):
        yield invalid_value(path, value, "must not start with '..'")


def _secret(source: Object, path: str) -> Errors:
    if not source.get("secretName"):
        yield required(f"{path}.secretName")
    yield from _items(source, path)


def _config_map(source: Object, path: str) -> Errors:
    if not source.get("name"):
        yield required(f"{path}.name")
    yield from _items(source, path)


def _host_path(source: Object, path: str) -> Errors:
    where = source.get("path", "")
    if not where:
        yield required(f"{path}.path")
    elif ".." in where.split("/"):
        yield invalid_value(f"{path}.path", where, "must not contain '..'")


def _projected(source: Object, path: str) -> Errors:
    yield from _mode(source.get("defaultMode"), f"{path}.defaultMode")
    for position, projection in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{position}]"
        message = [key for key, value in projection.items() if value is not None]
        if not message:
            yield required(at, "must specify one projection")
        for key in ("secret", "configMap"):
            reference = projection.get(key)
            if reference is not None:
                if not reference.get("name"):
                    yield required(f"{at}.{key}.name")
                yield from _items(reference, f"{at}.{key}")
        token = projection.get("serviceAccountToken")
        if token is not None:
            yield from _token(token, f"{at}.serviceAccountToken")


def _token(token: Object, path: str) -> Errors:
    seconds = token.get("expirationSeconds")
    if seconds is not None and seconds < 600:
        problem = "may not specify a duration less than 10 minutes"
        yield invalid_value(f"{path}.expirationSeconds", seconds, problem)
    if seconds is not None and seconds > 1 << 32:
        problem = "may not specify a duration larger than 2^32 seconds"
        yield invalid_value(f"{path}.expirationSeconds", seconds, problem)
    if not token.get("path"):
        yield required(f"{path}.path")
    else:
        yield from _local_path(token["path"], f"{path}.path")


# In kube-apiserver's order: the first source that is set counts.
_ORDER = (
    "emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi",
    "glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc",
    "flexVolume", "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume", "azureDisk",
    "storageos", "projected", "scaleIO", "csi", "ephemeral", "image",
)  # fmt: skip
_CHECKS: dict[str, Callable[[Object, str], Errors]] = {
    "secret": _secret,
    "configMap": _config_map,
    "hostPath": _host_path,
    "downwardAPI": _items,
    "projected": _projected,
    "persistentVolumeClaim": _needs("claimName"),
    "nfs": _needs("server", "path"),
    "csi": _needs("driver"),
    "ephemeral": _needs("volumeClaimTemplate"),
}
