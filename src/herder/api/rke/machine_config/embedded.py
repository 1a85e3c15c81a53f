"""Validation of the options of the embedded distribution. A machine does not start with an invalid value."""

from __future__ import annotations

import json
import re
from typing import Any

from herder.api.rke.machine_config.errors import OptionError

_EFFECTS = "NoSchedule|PreferNoSchedule|NoExecute"
LISTS = {
    "node-label": (re.compile(r"[^=]+=.*"), "key=value"),
    "node-taint": (re.compile(rf"[^=:]+(=[^:]*)?:({_EFFECTS})"), f"key[=value]:effect, the effect one of {_EFFECTS}"),
    "tls-san": (re.compile(r".+"), "a name or an address"),
}
TEXTS = {"log-level": (re.compile("debug|info|warning|error"), "debug, info, warning or error")}


def checked_option(field: str, option: str, value: Any) -> str | list[str]:
    if option in LISTS:
        return [_text(field, each, *LISTS[option]) for each in (value if isinstance(value, list) else [value])]
    if option in TEXTS:
        return _text(field, value, *TEXTS[option])
    known = ", ".join((*LISTS, *TEXTS))
    raise OptionError(field, f"unknown option of the embedded distribution; use one of {known}")


def checked_taint(field: str, taint: str) -> str:
    return _text(field, taint, *LISTS["node-taint"])


def _text(field: str, value: Any, form: re.Pattern[str], wanted: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise OptionError(field, f"{json.dumps(value)} must be {wanted}")
    return value
