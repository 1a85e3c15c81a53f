"""Redact the join tokens of a cluster in what its machines report."""

from __future__ import annotations

import base64

from herder.api.machines.credentials import redact
from herder.api.rke import names
from herder.api.rke.kinds import TOKENS_SECRET
from herder.engine.runtime.view import View


def redact_tokens(view: View, cluster: str, text: str) -> str:
    tokens = view.get(TOKENS_SECRET, names.tokens_secret(cluster)) if text else None
    values = ((tokens or {}).get("data") or {}).values()
    return redact(text, [base64.b64decode(value).decode(errors="replace") for value in values])
