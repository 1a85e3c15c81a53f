"""What the embedded distribution says to machines that it cannot make nodes of."""

from __future__ import annotations

import pytest

from herder.controllers.planner.distributions.embedded import Embedded
from herder.controllers.planner.distributions.interface import ClusterInputs, ConfigError, MachineInputs, Roles

CLUSTER = ClusterInputs(
    namespace="fleet-default", name="demo", management_name="c-m-abcdefgh", version="v1.36.3+herder1", spec={}
)
SERVER = Roles(etcd=True, control_plane=True)
CASES = {
    "no address": (
        MachineInputs(name="m", uid="u", roles=SERVER, is_init=True),
        "machine m: has told no address; register it with --internal-address",
    ),
    "a second server": (
        MachineInputs(name="m", uid="u", roles=SERVER, internal_addresses=("10.0.0.1",)),
        "machinePools: the embedded distribution has one server",
    ),
    "windows": (
        MachineInputs(name="m", uid="u", roles=Roles(worker=True), windows=True),
        "machinePools: the embedded distribution has no Windows nodes",
    ),
}


@pytest.mark.parametrize(("machine", "told"), CASES.values(), ids=CASES.keys())
def test_why_a_machine_cannot_be_a_node(machine: MachineInputs, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Embedded().render(CLUSTER, machine)
