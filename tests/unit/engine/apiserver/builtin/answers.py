"""Responses of a real kube-apiserver, recorded by `record.py`."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.engine.apiserver.builtin.record import ANSWERS

REAL: dict[str, dict[str, Any]] = json.loads(ANSWERS.read_text())
