"""Settings are read from the manager's environment."""

from __future__ import annotations

from functools import partial

from herder.api.settings import SETTING
from tests.support.manager.provisioned import VARIABLES, ManagerSite


async def _assert_setting_from_environment(setting: str, site: ManagerSite) -> None:
    found = await site.client.get(SETTING.resource, setting)
    assert found["value"] == VARIABLES[f"CATTLE_{setting.upper().replace('-', '_')}"]


SCENARIOS = {
    "General_SystemAgentVersion": partial(_assert_setting_from_environment, "system-agent-version"),
    "General_WinsAgentVersion": partial(_assert_setting_from_environment, "wins-agent-version"),
    "General_CSIProxyAgentVersion": partial(_assert_setting_from_environment, "csi-proxy-agent-version"),
}
