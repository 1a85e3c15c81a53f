"""Documents that drivers follow where their Job runs: those of users hold credentials, and name no file or command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from herder.engine.client.kubeconfig import KubeconfigError, parse_foreign

SERVICE_ACCOUNT = "service_account"


def document_problem(driver: str, fields: Mapping[str, Any]) -> str:
    """The first field that the driver must not get, and why; empty where there is none."""
    for field, check in _CHECKS.get(driver, {}).items():
        content = fields.get(field)
        if content and (why := check(str(content))):
            return f"{field}: {why}"
    return ""


def _kubeconfig(text: str) -> str:
    """client-go runs the command of a user's `exec`."""
    try:
        parse_foreign(text)
    except KubeconfigError as error:
        return f"{error}; use a kubeconfig with a token or certificates in it"
    return ""


def _google(text: str) -> str:
    """Google's library sends what is in the file or at the URL of an external account to any server."""
    problem = f'must be the key of a Google service account, in JSON with "type": "{SERVICE_ACCOUNT}"'
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return problem
    # Go finds a field by its name in any case, and takes the last one of several.
    types = [value for name, value in pairs if name.casefold() == "type"] if isinstance(pairs, tuple) else []
    return "" if types and all(each == SERVICE_ACCOUNT for each in types) else problem


_CHECKS: Mapping[str, Mapping[str, Callable[[str], str]]] = {
    "google": {"authEncodedJson": _google},
    "harvester": {"kubeconfigContent": _kubeconfig},
}
