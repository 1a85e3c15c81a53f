"""The error of a build."""

from __future__ import annotations


class BuildError(Exception):
    """An input is missing or is not what its hash says; the message says what to do."""
