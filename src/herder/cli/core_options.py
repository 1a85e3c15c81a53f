"""The options of commands that run controllers; apart, so that the command line stays quick to load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from herder.api.capi.core import Mode

Command = TypeVar("Command", bound=Callable[..., Any])


def core_options(command: Command) -> Command:
    command = click.option(
        "--machines/--no-machines",
        default=None,
        help="Provide machines by node drivers. On unless another, such as Rancher, does.",
    )(command)
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


ALL_PODS = "all"

runner_pods_option = click.option(
    "--runner-pods",
    type=click.Choice(["machine-jobs", ALL_PODS]),
    default="machine-jobs",
    show_default=True,
    help=(
        "Pods that the runner runs: those of Jobs that Herder created for machines, or all that select its node. "
        "WARNING: 'all' gives every user who may create pods in any namespace commands on this host. Needs root."
    ),
)
