"""The upstream provisioning suite on the embedded server."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import SCENARIOS, Running, label

ENGINE = "embedded"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=label)
async def test(running: Running, scenario: str) -> None:
    await running.result(scenario)
