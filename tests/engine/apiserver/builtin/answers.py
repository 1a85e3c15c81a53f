"""What the real server said, as `record.py` kept it."""

from __future__ import annotations

import json
from typing import Any

from tests.engine.apiserver.builtin.record import ANSWERS

REAL: dict[str, dict[str, Any]] = json.loads(ANSWERS.read_text())
