"""`herder completion`: shell completion of commands and flags."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from herder.cli.examples import examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        'eval "$(herder completion bash)"    # add this line to ~/.bashrc',
        'eval "$(herder completion zsh)"     # add this line to ~/.zshrc',
        "herder completion fish > ~/.config/fish/completions/herder.fish",
    ).replace("  eval", "  herder completion bash > /etc/bash_completion.d/herder\n  eval", 1)
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "herder", "_HERDER_COMPLETE").source())
