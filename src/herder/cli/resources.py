"""Commands that are followed by a resource: `herder delete cluster meadow`."""

from __future__ import annotations

import click


class ResourceGroup(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Fail with the known resources if the first argument is not one of them."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            usages = ", ".join(f"{ctx.command_path} {noun} …" for noun in self.commands)
            ctx.fail(f'unknown resource "{args[0]}"; use: {usages}')
        return super().resolve_command(ctx, args)
