"""The scenarios of the upstream provisioning suite by their names, several at a time on one manager."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tests.provisioning import custom, general, machine_provisioning, pre_bootstrap, simulated_machine_provisioning
from tests.support.manager.provisioned import ManagerSite

MAX_PARALLEL = 6

Scenario = Callable[[ManagerSite], Awaitable[None]]
SIMULATED: Mapping[str, Scenario] = {
    **simulated_machine_provisioning.SIMULATED,
    **custom.SIMULATED,
    **pre_bootstrap.SIMULATED,
}
"""Scenarios with simulated nodes: they need several etcd members, servers with a subset of the roles, or K3s."""
SCENARIOS: Mapping[str, Scenario] = {
    **general.SCENARIOS,
    **SIMULATED,
    **custom.SCENARIOS,
    **machine_provisioning.SCENARIOS,
}
ALL: Mapping[str, Scenario] = {**SCENARIOS, **machine_provisioning.OWN_SCENARIOS}
"""Those of the upstream suite, and our own."""


def label(scenario: str) -> str:
    return f"{scenario}-simulated-nodes" if scenario in SIMULATED else scenario


class ScenarioRuns:
    """Runs the selected scenarios, a limited number at a time; each test waits for its own."""

    def __init__(self, site: ManagerSite, wanted: Iterable[str]) -> None:
        self._site = site
        self._turns = asyncio.Semaphore(MAX_PARALLEL)
        self._tasks = {name: asyncio.ensure_future(self._run(ALL[name])) for name in wanted}

    async def _run(self, scenario: Scenario) -> None:
        async with self._turns:
            await scenario(self._site)

    async def result(self, name: str) -> None:
        await self._tasks[name]

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
