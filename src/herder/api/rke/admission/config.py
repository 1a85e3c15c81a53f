"""Validation of schemaless configuration: values that upstream would silently drop, and inline secrets.

Everyone who can read the Cluster could read such a secret.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec

from herder.api.capi.admission.total import Rule
from herder.api.capi.admission.values import section, text, value
from herder.api.rke.admission.paths import PATH, RKE
from herder.api.rke.machine_config.errors import OptionError
from herder.api.rke.machine_config.options import checked_option
from herder.api.rke.node.install import BadVariable, agent_variable
from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value
from herder.engine.meta.kinds import Object
from herder.engine.meta.selectors import validate_label_selector

_BY_REFERENCE = "secret://"  # a reference to a Secret: secret://namespace:name

_SECRET_KEYS = {
    "token": "it is generated",
    "agent-token": "it is generated",
    "etcd-s3-access-key": "name a cloud credential in spec.rkeConfig.etcd.s3.cloudCredentialName",
    "etcd-s3-secret-key": "name a cloud credential in spec.rkeConfig.etcd.s3.cloudCredentialName",
    "etcd-s3-session-token": "name a cloud credential in spec.rkeConfig.etcd.s3.cloudCredentialName",
    "private-registry": "use spec.rkeConfig.registries, which names Secrets",
    "vpn-auth": "put it into a Secret and write it to a file with spec.rkeConfig.machineSelectorFiles",
}
_REFERENCED_KEYS = {"cloud-provider-config": f"put it into a Secret and write {_BY_REFERENCE}namespace:name"}
_SECRET_NAME = re.compile(
    r"^secret$|(^|[-_.])(password|passwd|passphrase|secret[-_]?key|secret[-_]?access[-_]?key|client[-_]?secret"
    r"|private[-_]?key|api[-_]?key|token)$",
    re.IGNORECASE,
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PASSWORD_IN_URL = re.compile(r"[a-z0-9+.-]://[^/@\s:]*:[^/@\s]+@", re.IGNORECASE)
"""The pattern starts with the last letter of the scheme: matching the whole scheme takes quadratic time in
long words.
"""

_EXPECTED = "must be a string, a boolean or a list of those"
_NO_INLINE_SECRET = "must not contain a secret: {}"
_PUT_INTO_SECRET = "put it into a Secret that the chart reads"


def _machine_configs(obj: Object, old: Object | None) -> Iterator[FieldError]:
    version = text(obj, "spec", "kubernetesVersion")
    for path, found, before in _configs(obj, old or {}):
        if found != before:
            yield from _machine_config(version, found, before, path)


def _charts(obj: Object, old: Object | None) -> Iterator[FieldError]:
    charts = section(obj, *RKE, "chartValues")
    if charts != section(old or {}, *RKE, "chartValues"):
        yield from _chart_values(charts, f"{PATH}.chartValues")


# --- configuration of machines --------------------------------------------------------------------------------------


def _configs(obj: Object, old: Object) -> Iterator[tuple[str, Object, Object]]:
    """Yield the path, the new and the old configuration."""
    everywhere = (*RKE, "machineGlobalConfig")
    yield f"{PATH}.machineGlobalConfig", section(obj, *everywhere), section(old, *everywhere)
    selected, before = (value(each, *RKE, "machineSelectorConfig") or [] for each in (obj, old))
    for position, entry in enumerate(selected):
        known = before[position] if position < len(before) else {}
        path = f"{PATH}.machineSelectorConfig[{position}].config"
        yield path, section(entry, "config"), section(known, "config")


def _machine_config(version: str, config: Object, before: Object, path: str) -> Iterator[FieldError]:
    for key, found in config.items():
        if found is None or found == before.get(key):
            continue
        at = f"{path}.{key}"
        if advice := _secret_advice(key, found):
            # the message omits the value, because responses are logged
            yield forbidden_field(at, _NO_INLINE_SECRET.format(advice))
        elif isinstance(found, dict) or (isinstance(found, list) and not all(map(_is_plain, found))):
            yield invalid_value(at, "nested", _EXPECTED)
        elif isinstance(found, int | float) and not isinstance(found, bool):
            yield invalid_value(at, found, f'{_EXPECTED}; write "{found}"')
        else:
            yield from _option(version, at, key, found)


def _option(version: str, path: str, option: str, found: Any) -> Iterator[FieldError]:
    """Refuse what the distribution does not know: its processes would not start with it."""
    try:
        checked_option(version, path, option, found)
    except OptionError as error:
        yield forbidden_field(path, error.detail)  # without the value: that of an unknown option may be a secret


def _is_plain(item: Any) -> bool:
    return isinstance(item, str | bool | int | float)


def _secret_advice(key: str, found: Any) -> str:
    """Return what to do with an inline secret; "" if there is none."""
    if key in _SECRET_KEYS:
        return _SECRET_KEYS[key]
    if key in _REFERENCED_KEYS and not str(found).startswith(_BY_REFERENCE):
        return _REFERENCED_KEYS[key]
    items = found if isinstance(found, list) else [found]
    return "remove the password from the URL" if any(_PASSWORD_IN_URL.search(str(item)) for item in items) else ""


def _selectors(obj: Object, old: Object | None) -> Iterator[FieldError]:
    for part in ("machineSelectorConfig", "machineSelectorFiles"):
        before = {_encoded(value(each, "machineLabelSelector")) for each in value(old or {}, *RKE, part) or ()}
        for position, entry in enumerate(value(obj, *RKE, part) or ()):
            selector = value(entry, "machineLabelSelector")
            if _encoded(selector) not in before:
                yield from validate_label_selector(selector, f"{PATH}.{part}[{position}].machineLabelSelector")


def _encoded(found: Any) -> bytes:
    """Encode a value for set membership: an object may have thousands of entries."""
    return msgspec.json.encode(found, order="deterministic")


# --- other places ---------------------------------------------------------------------------------------------------


def _chart_values(found: Any, path: str) -> Iterator[FieldError]:
    if isinstance(found, list):
        for position, item in enumerate(found):
            yield from _chart_values(item, f"{path}[{position}]")
    if not isinstance(found, dict):
        return
    for key, item in found.items():
        if isinstance(item, str) and item and is_secret_name(str(key)):
            yield forbidden_field(f"{path}.{key}", _NO_INLINE_SECRET.format(_PUT_INTO_SECRET))
        else:
            yield from _chart_values(item, f"{path}.{key}")


def _registries(obj: Object, old: Object | None) -> Iterator[FieldError]:
    path = f"{PATH}.registries"
    mirrors, before = (section(each, *RKE, "registries", "mirrors") for each in (obj, old or {}))
    for host, mirror in mirrors.items():
        if mirror != before.get(host):
            for position, endpoint in enumerate(section(mirrors, host).get("endpoint") or ()):
                yield from _endpoint(endpoint, f"{path}.mirrors[{host}].endpoint[{position}]")
    for host in section(obj, *RKE, "registries", "configs"):
        bundle, known = (value(each, *RKE, "registries", "configs", host, "caBundle") for each in (obj, old or {}))
        if bundle != known:
            yield from _bundle(bundle, f"{path}.configs[{host}].caBundle")


def _bundle(bundle: Any, path: str) -> Iterator[FieldError]:
    wanted = "base64-encoded PEM certificates"
    yield from of_format(bundle, path, wanted)
    try:
        decoded = base64.b64decode(bundle, validate=True) if isinstance(bundle, str) else b""
    except ValueError:
        decoded = b"?"
    if decoded and b"-----BEGIN CERTIFICATE-----" not in decoded:
        yield invalid_value(path, "text", f"must be {wanted}")


def _endpoint(address: str, path: str) -> Iterator[FieldError]:
    if _PASSWORD_IN_URL.search(address):
        yield forbidden_field(path, _NO_INLINE_SECRET.format("name a Secret in spec.rkeConfig.registries.configs"))
        return
    try:
        urlsplit(address)
    except ValueError as error:
        yield invalid_value(path, address, f"must be a URL, such as https://mirror.example:5000: {error}")


def of_format(found: Any, path: str, wanted: str) -> Iterator[FieldError]:
    """API servers admit lists where a schema asks for a formatted string."""
    if found is not None and not isinstance(found, str):
        yield invalid_value(path, "a list", f"must be {wanted}")


def _environment(obj: Object, old: Object | None) -> Iterator[FieldError]:
    before = {_encoded(variable) for variable in value(old or {}, "spec", "agentEnvVars") or ()}
    for position, variable in enumerate(value(obj, "spec", "agentEnvVars") or ()):
        path = f"spec.agentEnvVars[{position}]"
        if _encoded(variable) in before:
            continue
        if variable.get("value") and is_secret_name(variable.get("name") or ""):
            yield forbidden_field(
                path, _NO_INLINE_SECRET.format("remove it; agents need no secrets in their environment")
            )
            continue
        try:
            agent_variable(path, variable)
        except BadVariable as bad:
            yield forbidden_field(bad.field, bad.detail)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret: `password`, `clientSecret`, `AWS_SECRET_ACCESS_KEY`."""
    return _SECRET_NAME.search(_WORD_START.sub("_", name)) is not None


RULES: tuple[tuple[str, Rule], ...] = (
    (f"{PATH}.machineGlobalConfig", _machine_configs),
    (f"{PATH}.chartValues", _charts),
    (f"{PATH}.machineSelectorConfig", _selectors),
    (f"{PATH}.registries", _registries),
    ("spec.agentEnvVars", _environment),
)
