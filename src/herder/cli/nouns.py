"""Words that are followed by what they are about: `herder delete cluster meadow`."""

from __future__ import annotations

import click


class Nouns(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Who leaves out what it is about is told how it is said."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            ways = ", ".join(f"{ctx.command_path} {noun} …" for noun in self.commands)
            ctx.fail(f'"{args[0]}" is not among what {ctx.command_path} knows: {ways}')
        return super().resolve_command(ctx, args)
