"""Entry point: `python -m herder.clusteragent`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from herder.clusteragent.agent import Agent
from herder.clusteragent.configuration import Configuration, ConfigurationError, configuration
from herder.clusteragent.trust import Untrusted


def main(arguments: Sequence[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        wanted = configuration(sys.argv[1:] if arguments is None else arguments, os.environ)
        asyncio.run(_run(wanted))
    except (ConfigurationError, Untrusted) as problem:
        print(f"cluster-agent: {problem}", file=sys.stderr)
        return 1
    return 0


async def _run(wanted: Configuration) -> None:
    agent = asyncio.ensure_future(Agent(wanted).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.cancel)
    try:
        await agent
    except asyncio.CancelledError:
        logging.info("received a signal; stopping")
    except BaseExceptionGroup as group:
        known = group.subgroup((ConfigurationError, Untrusted))
        if known is None:
            raise
        raise known.exceptions[0] from None


if __name__ == "__main__":
    sys.exit(main())
