"""The upstream provisioning suite on a real kube-apiserver."""

from __future__ import annotations

import pytest

from tests.provisioning.scenarios import SCENARIOS, Running, label

ENGINE = "real"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=label)
async def test(running: Running, scenario: str) -> None:
    await running.result(scenario)
