"""Validate credential documents that drivers act on in their Job: they must not name files or commands of the host."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from herder.api.machines.drivers.arguments import FILES_DIRECTORY
from herder.engine.client.kubeconfig import KubeconfigError, parse_untrusted

SERVICE_ACCOUNT = "service_account"


def document_problem(driver: str, fields: Mapping[str, Any]) -> str:
    """Return the first field that the driver must not get, and why; "" if there is none."""
    for field, check in _CHECKS.get(driver, {}).items():
        content = fields.get(field)
        if content and (why := check(str(content))):
            return f"{field}: {why}"
    return ""


def recorded_document_problem(driver: str, config: Mapping[str, Any]) -> str:
    """Return the same for a machine record, which every editor of its state Secret can change.

    Drivers take what the record holds if their Job gets no such flag or variable, as when it removes a machine.
    """
    checks = _RECORD_CHECKS.get(driver, {})
    for field, content in config.items():
        check = checks.get(field.casefold())  # Go matches field names case-insensitively
        if check and content and (why := check(str(content))):
            return f"{field}: {why}"
    return ""


def _kubeconfig(text: str) -> str:
    """client-go would run the command of a user's `exec` plugin."""
    try:
        parse_untrusted(text)
    except KubeconfigError as error:
        return f"{error}; use a kubeconfig with a token or certificates in it"
    return ""


def _google(text: str) -> str:
    """Google's client library would send the file or URL of an external account to any server."""
    problem = f'must be the key of a Google service account, in JSON with "type": "{SERVICE_ACCOUNT}"'
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return problem
    # Go matches field names case-insensitively, and takes the last one.
    types = [value for name, value in pairs if name.casefold() == "type"] if isinstance(pairs, tuple) else []
    return "" if types and all(each == SERVICE_ACCOUNT for each in types) else problem


def _recorded_google(text: str) -> str:
    """The driver records what it gets, which is the path of the file, and decodes base64 before it reads a document."""
    if text == f"{FILES_DIRECTORY}/authEncodedJson":
        return ""
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except ValueError:
        return _google(text)
    return _google(decoded)


_CHECKS: Mapping[str, Mapping[str, Callable[[str], str]]] = {
    "google": {"authEncodedJson": _google},
    "harvester": {"kubeconfigContent": _kubeconfig},
}

_RECORD_CHECKS: Mapping[str, Mapping[str, Callable[[str], str]]] = {
    "google": {"auth": _recorded_google},
    "harvester": {"kubeconfigcontent": _kubeconfig},
}
"""By driver: fields of its Go struct, in lower case."""
