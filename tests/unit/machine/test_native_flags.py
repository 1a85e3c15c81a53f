"""The API's description of the native drivers matches the drivers' own flags."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.registered import default_node_drivers
from herder.machine.drivers import NATIVE, create_flags


def test_the_api_lists_every_native_driver() -> None:
    assert set(known.NATIVE_DRIVERS) == set(NATIVE)


@pytest.mark.parametrize("driver", known.NATIVE_DRIVERS)
def test_flags_of_native_drivers_match_their_fields(driver: str) -> None:
    flags = create_flags(driver)
    assert flags
    node_driver = next(each for each in default_node_drivers() if each["metadata"]["name"] == driver)
    fields = schemas.machine_fields(flags, node_driver)
    assert len(fields) == len(flags)
    assert set(known.file_aliases(node_driver)) <= set(fields)
    assert set(known.credential_fields(node_driver).all) <= set(fields)
    if driver in known.ZONE_FIELD:
        assert known.ZONE_FIELD[driver] in fields
    names = {flag.name for flag in flags}
    aliases = known.file_aliases(node_driver)
    assert {known.flag_name(driver, aliases.get(name, name)) for name in fields} == names, "fields map back to flags"
