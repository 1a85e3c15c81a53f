"""State of a machine, read by `herder ssh` and `herder scp` with the rights of an administrator."""

from __future__ import annotations

import base64
from typing import Any, cast

import click
import pytest

from herder.api.machines import jobs
from herder.api.machines.credentials import CREDENTIAL_TYPE
from herder.api.machines.kinds import kinds_of
from herder.api.machines.names import STATE_KEY
from herder.cli.machine.lookup import Found, read_state
from herder.engine.client.client import Client
from herder.engine.meta.kinds import Object

KIND = kinds_of("amazonec2").machine
LONG = "production-with-a-name-that-is-rather-long-pool-abcde-fghij"
FOUND = Found("fleet-default", LONG, None)


class OneSecret:
    """A client of a server with one Secret."""

    def __init__(self, secret: Object) -> None:
        self._secret = secret

    async def get(self, _resource: object, name: str, **_: Any) -> Object:
        assert name == self._secret["metadata"]["name"]
        return self._secret


def state(**fields: Any) -> Object:
    infra = {"metadata": {"name": LONG, "namespace": "fleet-default"}}
    built = jobs.state_secret(infra, KIND, LONG, "")
    meta = {**built["metadata"], "uid": "1"}
    return {**built, "metadata": meta, "data": {STATE_KEY: base64.b64encode(b"archive").decode()}, **fields}


async def read(secret: Object) -> bytes:
    return (await read_state(cast(Client, OneSecret(secret)), [FOUND])).archive


async def test_the_state_of_the_machine_is_read() -> None:
    assert await read(state()) == b"archive"


@pytest.mark.parametrize("type_", ["Opaque", CREDENTIAL_TYPE])
async def test_a_secret_of_a_user_is_not_machine_state(type_: str) -> None:
    """Users may create Secrets of these types under names that were truncated."""
    with pytest.raises(click.ClickException, match="is not the state of machine"):
        await read(state(type=type_))


async def test_the_state_of_another_machine_is_not_used() -> None:
    other = state()
    other["metadata"]["labels"] = {**other["metadata"]["labels"], "rke.cattle.io/infra-machine-name": "another"}
    with pytest.raises(click.ClickException, match="is not the state of machine"):
        await read(other)
