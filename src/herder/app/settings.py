"""Settings on the command line: `--set NAME=VALUE`, and a file of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from herder.api.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Layers:
    """Settings given on the command line."""

    flags: Mapping[str, str] = field(default_factory=dict)
    file: Mapping[str, str] = field(default_factory=dict)


def settings_options(command: Command) -> Command:
    command = click.option(
        "--settings",
        "settings_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="YAML file that maps setting names to values.",
    )(command)
    return click.option(
        "--set",
        "set_flags",
        multiple=True,
        metavar="NAME=VALUE",
        help="Value of a setting; overrides all other sources. Can be repeated.",
    )(command)


def layers_from(set_flags: tuple[str, ...], settings_file: Path | None) -> Layers:
    """Parse both layers; invalid names or values are usage errors."""
    layers = Layers(_flags(set_flags), _file(settings_file) if settings_file else {})
    problems = Settings(flags=layers.flags, file=layers.file, environment=os.environ).problems()
    if problems:
        raise click.UsageError("; ".join(problems))
    return layers


def _flags(given: tuple[str, ...]) -> dict[str, str]:
    flags = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        flags[name] = value
    return flags


def _file(path: Path) -> dict[str, str]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--settings") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise click.BadParameter(
            f"{path} must map setting names to strings; quote numbers and booleans", param_hint="--settings"
        )
    return content
