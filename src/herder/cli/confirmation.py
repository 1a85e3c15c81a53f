"""Questions before a command deletes something."""

from __future__ import annotations

import sys

import click

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Scripts, which have none, are not asked."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)
