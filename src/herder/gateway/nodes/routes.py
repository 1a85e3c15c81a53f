"""Routes for machines before they are nodes: scripts, the agent, CA discovery, and their plan."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from herder.engine.client.client import Client
from herder.engine.logs import get_logger
from herder.engine.meta.errors import StatusError
from herder.engine.meta.kinds import Object
from herder.engine.wire import Request, Response
from herder.gateway.nodes.assets import PREFIX as ASSETS
from herder.gateway.nodes.assets import Assets
from herder.gateway.nodes.connect import WAIT_SECONDS, ConnectHandler
from herder.gateway.nodes.install_script import ScriptInputs, powershell_script, shell_script
from herder.gateway.nodes.machine_accounts import MachineAccounts
from herder.gateway.nodes.text_responses import Refusal, text

log = get_logger(__name__)

_READ_METHODS = frozenset({"GET", "HEAD"})


class NodeRoutes:
    """Request handler for machines."""

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
        """`cluster_of` returns the management Cluster of a registration token; `build_agent` writes the node agent
        as one file."""
        self._setting = setting
        self.accounts = MachineAccounts(client)
        self._assets = Assets(build_agent, setting)
        self._connect = ConnectHandler(
            client, self.accounts, cluster_of=cluster_of, clock=clock, setting=setting, wait=wait
        )
        self._answers = {
            "/v3/connect/agent": self._connect.agent,
            "/v3/connect/cluster-info": self._connect.cluster_info,
            "/v3/connect/config-yaml": self._connect.config_yaml,
        }

    async def run(self) -> None:
        await self.accounts.run()

    async def ready(self) -> None:
        await self.accounts.ready()

    async def handle(self, request: Request) -> Response | None:
        """Return None if the path is not served here."""
        if request.method not in _READ_METHODS:
            return None
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return refusal.response()
        except (StatusError, OSError) as error:
            log.warning("cannot answer a node", path=request.path, error=str(error))
            return Refusal(503, "the manager cannot answer now; retry").response()

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
            raise Refusal(503, "setting server-url: not set; machines need it to register")
        return inputs
