"""The upstream provisioning suite on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import ALL, ScenarioRuns, label

ENGINE = "real"


@pytest.mark.parametrize("scenario", ALL, ids=label)
async def test(scenario_runs: ScenarioRuns, scenario: str) -> None:
    await scenario_runs.result(scenario)
