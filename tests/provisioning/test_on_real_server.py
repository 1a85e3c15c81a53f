"""The upstream provisioning suite on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import SCENARIOS, Running

ENGINE = "real"


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test(running: Running, scenario: str) -> None:
    await running.result(scenario)
