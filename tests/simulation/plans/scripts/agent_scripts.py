"""What the scripts that redeploy a node agent do on simulated machines. A unit test runs the scripts in a shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from herder.agent.core.events import Finished
from herder.agent.core.protocol import Identity
from herder.sim.host.command import Command
from herder.sim.nodes import SimulatedNode


async def redeploy_agent(command: Command) -> Finished:
    """The agent is verified now. It is replaced in the background, once the running one has finished its plan."""
    _switch, url, checksum, _certificates, _tries, plan_seconds, come_up_seconds = command.arguments
    node, served = command.node, command.node.context.served_agent
    await asyncio.sleep(node.context.random.uniform(0.5, 5))
    if url != "https://manager.sim/assets/herder-agent.pyz":
        return Finished(1, stderr=f"{url}: not found\n".encode())
    if served.checksum != checksum:
        why = f"the agent from {url} has the checksum {served.checksum}, not {checksum}; nothing has changed\n"
        return Finished(1, stderr=why.encode())
    switch = asyncio.ensure_future(_switch_agent(node, served, float(plan_seconds), float(come_up_seconds)))

    def ended(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            node.context.failed(error)

    switch.add_done_callback(ended)
    return Finished(0, f"herder-agent version {served.version}: verified\n".encode())


async def _switch_agent(node: SimulatedNode, new: Identity, plan_seconds: float, come_up_seconds: float) -> None:
    """It runs outside the agent, and ends with the machine."""
    if not await _until(node, lambda: node.agent_is_idle, plan_seconds):
        return
    await asyncio.sleep(1)
    if not node.powered:
        return
    if node.disk.agent != new:
        node.disk.previous_agent, node.disk.agent = node.disk.agent, new
    node.restart_agent()
    if await _until(node, lambda: node.agent_is_confirmed, come_up_seconds) or not node.powered:
        return
    assert node.disk.previous_agent is not None
    node.disk.agent = node.disk.previous_agent
    node.restart_agent()


async def _until(node: SimulatedNode, condition: Callable[[], bool], seconds: float) -> bool:
    waited = 0.0
    while node.powered and waited < seconds:
        if condition():
            return True
        await asyncio.sleep(1)
        waited += 1
    return False
