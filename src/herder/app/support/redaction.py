"""Remove secrets from objects and text before they get into a support bundle.

Secrets themselves are never read. But users also write secrets where they do not belong: into the free-form
configuration of a distribution, environment variables, fields of machines, and annotations. There, only values of
known harmless fields are kept. Everywhere else, fields are redacted by name, and text by the form of what it contains.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from herder.api.identity.restore_records import SPEC_COPIES
from herder.api.machines.kinds import CONFIG_GROUP, MACHINE_GROUP
from herder.api.management.kinds import REGISTRATION_TOKEN, TOKEN, USER
from herder.api.management.names import TOKEN_ALPHABET, TOKEN_LENGTH
from herder.api.settings import DEFINITIONS, SETTING
from herder.engine.meta.kinds import Object

REDACTED = "REDACTED"
MAX_TEXT = 4096
_MAX_DEPTH = 64

# --- text -----------------------------------------------------------------------------------------------------------

_SENSITIVE_OPTION = (
    r"(?:pass(?:word|wd|phrase)?|secret|token|authorization|credentials?|(?:access|api|secret|private|client)[-_ ]?key"
    r"|client-key-data|certificate-key)"
)
# Servers and nodes write the text. So no pattern scans far from where it does not match.
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,32}-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)[\w+/=]*"), REDACTED),  # the same in base64
    (re.compile(r"eyJ[\w-]{8,2048}\.[\w-]{8,4096}\.[\w-]*"), REDACTED),  # JSON web tokens
    (re.compile(rf"[{TOKEN_ALPHABET}]{{{TOKEN_LENGTH}}}"), REDACTED),  # tokens of the manager
    (re.compile(r"K10[0-9a-f]{64}::[^\s\"']+"), REDACTED),  # join tokens of K3s and RKE2
    (re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"), REDACTED),  # bootstrap tokens of kubeadm
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REDACTED),
    (re.compile(r"(?<=://)[^\s/\"']{1,512}@"), f"{REDACTED}@"),  # user and password of a URL
    (re.compile(r"\b(bearer|basic)\s{1,8}[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    # A header has a scheme before the credential.
    (re.compile(r"(authorization\s{0,8}[=:]\s{0,8})(?![\"'\\])[^\r\n\"'\\]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(
            rf"({_SENSITIVE_OPTION}\\{{0,4}}[\"']?\s{{0,8}}[=:]\s{{0,8}})"
            # The value; its quotes are kept, so that a line of JSON remains one.
            r"(?:(\")(?:[^\"\\]|\\.)*(\")"
            r"|(\\{1,4}\").{0,1024}?(\\{1,4}\")(?=\s{0,4}[,}\]]|$)|\\{1,4}\"[^\"]*|'[^']*'|[^\s}\"'\\]+)",
            re.IGNORECASE,
        ),
        rf"\1\2\4{REDACTED}\3\5",
    ),
    (
        re.compile(rf"(-[\w-]{{0,40}}?{_SENSITIVE_OPTION}\s{{1,8}})(?!-)(?:\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
)


def redacted_text(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return text


def _value(text: str) -> str:
    """Redacted before it is cut: a part of a secret is not recognized."""
    found = redacted_text(text)
    return found if len(found) <= MAX_TEXT else f"{found[:MAX_TEXT]}… ({len(text)} characters)"


# --- objects ----------------------------------------------------------------------------------------------------------

_SENSITIVE = re.compile(
    r"pass(word|wd|phrase)|token|secret|credential|(private|access|api|ssh|client)key|kubeconfig|userdata|customdata"
    r"|cloud(init|config)|authorization|bearer|cookie|dockerconfig|command|content|(?<!de)(?<!sub)script|manifest|^(auth|data|key)$"
)
_REFERENCE = re.compile(r"(name|names|namespace|ref|refs|generation|version|ready|created|provisioned)$")
_FREE_FORM = frozenset(
    {"agentEnvVars", "args", "chartValues", "config", "configs", "env", "machineGlobalConfig", "variables"}
)
"""Fields with values that users choose freely."""
_FREE_FORM_END = re.compile(r"(args|env|envvars|variables)$")
_HARMLESS = frozenset(
    {
        *("cni", "disable", "profile", "cluster-cidr", "service-cidr", "cluster-dns", "cluster-domain", "selinux"),
        *("ami", "availabilityZone", "cpuCount", "cpus", "diskSize", "instanceType", "machineType", "memory", "region"),
        *("memorySize", "rootSize", "size", "volumeType", "zone", "apiVersion", "kind", "name", "namespace"),
        *("cloudCredentialSecretName", "authConfigSecretName", "tlsSecretName"),
    }
)
"""Fields whose values are kept even where others are free-form."""
_OWN_DOMAINS = ("herder.io", "cattle.io", "cluster.x-k8s.io")
_LAST_APPLIED = re.compile(r"applied|kubectl")
_COMPRESSED = "H4sI"
"""The beginning of gzip in base64, such as the specs of clusters in SPEC_COPIES."""
_METADATA_ONLY = frozenset(kind.resource.group_resource for kind in (TOKEN, REGISTRATION_TOKEN, USER))
"""Kinds of credentials and of people: their fields help nobody else."""
_SERVER_FIELDS = ("managedFields", "selfLink")


def redacted_object(obj: Object, group: str, plural: str) -> Object:
    """A copy without secrets and managedFields."""
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in _SERVER_FIELDS}
    annotations = meta.pop("annotations", None) or {}
    found: Object = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": _fields(meta)}
    if annotations:
        found["metadata"]["annotations"] = {
            redacted_text(key): _annotation(key, str(value)) for key, value in sorted(annotations.items())
        }
    if (group, plural) in _METADATA_ONLY:
        return found
    is_machine = group in (MACHINE_GROUP, CONFIG_GROUP)
    is_unknown_setting = plural == SETTING.plural and group == SETTING.group and meta.get("name") not in DEFINITIONS
    for key, value in obj.items():
        if key not in found:
            is_free = (is_machine and key != "status") or is_unknown_setting
            found[key] = _free_form(value, 0, key) if is_free else _field(key, value, 0)
    return found


def _annotation(key: str, value: str) -> str:
    domain, _, name = key.rpartition("/")
    is_own = any(domain == own or domain.endswith(f".{own}") for own in _OWN_DOMAINS)
    if not is_own or key in SPEC_COPIES or _LAST_APPLIED.search(key) or _is_sensitive(name):
        return REDACTED
    if value.lstrip().startswith(_COMPRESSED):
        return REDACTED
    return _json(value) if value.lstrip().startswith(("{", "[")) else _value(value)


def _json(text: str) -> str:
    """A document in an annotation, redacted by its fields."""
    try:
        return _value(msgspec.json.encode(_plain(msgspec.json.decode(text), 0)).decode())
    except (msgspec.DecodeError, RecursionError):
        return REDACTED


def redacted_value(value: Any) -> Any:
    """A copy of any value without secrets."""
    return _plain(value, 0)


def _fields(fields: Object, depth: int = 0) -> Object:
    return {redacted_text(str(key)): _field(str(key), value, depth) for key, value in fields.items()}


def _field(key: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return value
    if key in _FREE_FORM or _FREE_FORM_END.search(key.replace("-", "").replace("_", "").lower()):
        return _free_form(value, depth, key)
    if _is_sensitive(key) or (key == "metadata" and isinstance(value, str)):  # of a snapshot: the spec of the cluster
        return REDACTED
    return _plain(value, depth)


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        if "name" in value and "value" in value:  # a variable or parameter
            return {**_fields({k: v for k, v in value.items() if k != "value"}, depth + 1), "value": REDACTED}
        return _fields(value, depth + 1)
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    return _value(value) if isinstance(value, str) else value


def _free_form(value: Any, depth: int, key: str = "") -> Any:
    """The structure and the names of fields, with the values of harmless ones."""
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {redacted_text(str(name)): _free_form(each, depth + 1, str(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_free_form(each, depth + 1, key) for each in value]
    if value is None or isinstance(value, bool) or value == "":
        return value
    return _value(str(value)) if key in _HARMLESS else REDACTED


def _is_sensitive(key: str) -> bool:
    name = key.replace("-", "").replace("_", "").lower()
    return bool(_SENSITIVE.search(name)) and not _REFERENCE.search(name)
