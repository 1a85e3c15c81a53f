"""Settings come from the manager's environment."""

from __future__ import annotations

from functools import partial

from herder.api.settings import SETTING
from tests.support.provisioned import VARIABLES, Site


async def _is_what_the_environment_says(setting: str, site: Site) -> None:
    found = await site.client.get(SETTING.resource, setting)
    assert found["value"] == VARIABLES[f"CATTLE_{setting.upper().replace('-', '_')}"]


SCENARIOS = {
    "General_SystemAgentVersion": partial(_is_what_the_environment_says, "system-agent-version"),
    "General_WinsAgentVersion": partial(_is_what_the_environment_says, "wins-agent-version"),
    "General_CSIProxyAgentVersion": partial(_is_what_the_environment_says, "csi-proxy-agent-version"),
}
