"""Options of commands that run controllers; a module of its own to keep the CLI fast to import."""

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
        help="Run the machine provider (node drivers). Default: on, unless another manager such as Rancher runs one.",
    )(command)
    command = click.option(
        "--in-memory",
        is_flag=True,
        help="Also run the in-memory provider: clusters with a real Kubernetes API and simulated machines.",
    )(command)
    return click.option(
        "--capi-core",
        type=click.Choice([mode.value for mode in Mode]),
        default=Mode.AUTO.value,
        show_default=True,
        help="Cluster API core controllers: own (built in), external, or auto (own unless another core is installed).",
    )(command)


LOG_LEVELS = ("debug", "info", "warning")
log_level_option = click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(LOG_LEVELS),
    help="Minimum level of log messages.",
)

ALL_PODS = "all"

runner_pods_option = click.option(
    "--runner-pods",
    type=click.Choice(["machine-jobs", ALL_PODS]),
    default="machine-jobs",
    show_default=True,
    help=(
        "Pods that the runner executes: those of Herder's own machine Jobs, or all pods that select its node. "
        "WARNING: 'all' lets every user who can create pods run commands on this host. Needs root."
    ),
)
