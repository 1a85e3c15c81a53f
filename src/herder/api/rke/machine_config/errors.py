"""Errors of configuration that cannot be rendered."""

from __future__ import annotations


class ConfigError(ValueError):
    """The user's configuration cannot be rendered. The message names the field and what to do."""


class OptionError(ConfigError):
    """One option is unknown or has an invalid value."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.detail = detail
