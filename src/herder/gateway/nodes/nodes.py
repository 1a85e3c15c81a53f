"""What machines ask of the manager before they are nodes: scripts, the agent, whom to trust, where their plan is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from herder.engine.client.client import Client
from herder.engine.client.wire import Request, Response
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.gateway.nodes.accounts import Accounts
from herder.gateway.nodes.answers import Refusal, text
from herder.gateway.nodes.assets import PREFIX as ASSETS
from herder.gateway.nodes.assets import Assets
from herder.gateway.nodes.connecting import WAIT_SECONDS, Connecting
from herder.gateway.nodes.rendering import ScriptInputs, powershell_script, shell_script

log = get_logger(__name__)

_READING = frozenset({"GET", "HEAD"})


class Nodes:
    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], datetime],
        setting: Callable[[str], str],
        cluster_of: Callable[[str], Object | None],
        build_agent: Callable[[Path], object],
        wait: float = WAIT_SECONDS,
    ) -> None:
        """`cluster_of`: the management Cluster that a registration token opens. `build_agent` writes the node agent as
        one file."""
        self._setting = setting
        self._accounts = Accounts(client)
        self._assets = Assets(build_agent, setting)
        self._connecting = Connecting(
            client, self._accounts, cluster_of=cluster_of, clock=clock, setting=setting, wait=wait
        )
        self._answers = {
            "/v3/connect/agent": self._connecting.agent,
            "/v3/connect/cluster-info": self._connecting.cluster_info,
            "/v3/connect/config-yaml": self._connecting.config_yaml,
        }

    async def run(self) -> None:
        await self._accounts.run()

    async def ready(self) -> None:
        await self._accounts.ready()

    async def handle(self, request: Request) -> Response | None:
        """None: the path is none of these."""
        if request.method not in _READING:
            return None
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return refusal.response()
        except (StatusError, OSError) as error:
            log.warning("a node could not be answered", path=request.path, error=str(error))
            return Refusal(503, "the manager cannot answer now: try again").response()

    async def _answer(self, request: Request) -> Response | None:
        match request.path:
            case "/healthz":
                return text(200, "ok")
            case "/system-agent-install.sh":
                return text(200, shell_script(self._script_inputs()))
            case "/wins-agent-install.ps1":
                return text(200, powershell_script(self._script_inputs()))
            case path if path.startswith(ASSETS):
                return await self._assets.answer(path)
            case path if path in self._answers:
                return await self._answers[path](request)
        return None

    def _script_inputs(self) -> ScriptInputs:
        inputs = ScriptInputs.of(self._setting)
        if not inputs.server:
            raise Refusal(503, "setting server-url: not set, so no machine could be told where to ask")
        return inputs
