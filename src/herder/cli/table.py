"""Tables on standard output: left-aligned columns, three spaces apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from herder.cli.terminal import escaped


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    lines = [list(header), *([escaped(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
