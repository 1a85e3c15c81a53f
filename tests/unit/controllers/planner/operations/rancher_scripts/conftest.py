from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.controllers.planner.operations.rancher_scripts.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
