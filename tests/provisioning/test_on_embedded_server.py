"""The upstream provisioning suite on the embedded server."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import ALL, ScenarioRuns, label

ENGINE = "embedded"


@pytest.mark.parametrize("scenario", ALL, ids=label)
async def test(scenario_runs: ScenarioRuns, scenario: str) -> None:
    await scenario_runs.result(scenario)
