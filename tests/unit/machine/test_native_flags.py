"""What is said of our own drivers elsewhere is what they say themselves."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers import known, schemas
from herder.api.machines.drivers.registered import default_node_drivers
from herder.machine.drivers import NATIVE, create_flags


def test_each_driver_of_ours_is_known_as_ours() -> None:
    assert set(known.NATIVE_DRIVERS) == set(NATIVE)


@pytest.mark.parametrize("driver", known.NATIVE_DRIVERS)
def test_its_flags_become_fields_and_what_is_said_of_its_fields_is_true(driver: str) -> None:
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
    assert {known.flag_name(driver, aliases.get(name, name)) for name in fields} == names, "and lead back to them"
