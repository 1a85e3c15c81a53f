"""The upstream provisioning suite on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import SCENARIOS, SLOW_ON_A_REAL_SERVER, Running, label

ENGINE = "real"


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each not in SLOW_ON_A_REAL_SERVER], ids=label)
async def test(running: Running, scenario: str) -> None:
    await running.result(scenario)
