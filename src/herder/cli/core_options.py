"""The options of commands that may run Cluster API's core; apart, so that the command line stays quick to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from herder.api.capi.core import Mode

Command = TypeVar("Command", bound=Callable[..., Any])


def core_options(command: Command) -> Command:
    command = click.option(
        "--in-memory", is_flag=True, help="Also provide in-memory clusters: an API each, and no machines."
    )(command)
    return click.option(
        "--capi-core",
        type=click.Choice([mode.value for mode in Mode]),
        default=Mode.AUTO.value,
        show_default=True,
        help="Cluster API's core: ours unless another is there, ours, or another.",
    )(command)
