"""`herder convert`: convert an export of Rancher to objects that this manager accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

import click
import yaml

from herder.api.rke.conversion import Conversion, Finding
from herder.api.rke.conversion import convert as convert_objects
from herder.cli.examples import examples
from herder.cli.terminal import escaped


@click.command(
    epilog=examples(
        "herder convert -f rancher-export.yaml > meadow.yaml && kubectl apply -f meadow.yaml",
        "kubectl get clusters.provisioning.cattle.io meadow -n fleet-default -o yaml | herder convert -f -",
    )
)
@click.option(
    "-f", "--filename", "file", type=click.File(), required=True, metavar="FILE", help="Exported YAML; - for stdin."
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print the report.")
def command(file: TextIO, quiet: bool) -> None:
    """Convert objects exported from Rancher, and print them as YAML.

    The report on standard error lists what was dropped and why, and what each remaining field of a Cluster does. The
    output can contain Secrets: treat it as a password.
    """
    try:
        found = convert_objects(yaml.safe_load_all(file))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""  # The error itself could quote a secret.
        raise click.ClickException(f"{file.name}: invalid YAML{line}") from None
    except ValueError as error:
        raise click.ClickException(f"{file.name}: {error}") from None
    if found.objects:
        click.echo(yaml.safe_dump_all(found.objects, sort_keys=False, explicit_start=True), nl=False)
    if not quiet:
        _report(found)
    if not found.objects:
        raise click.ClickException(f"{file.name}: nothing to convert")


def _report(found: Conversion) -> None:
    _section("Dropped:", found.dropped)
    _section("Not accepted here; change these fields before you apply the output:", found.refused)
    _section("Kept:", found.fields)


def _section(title: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    click.echo(title, err=True)
    for each in findings:
        path = f" {each.path}" if each.path else ""
        click.echo(escaped(f"  {each.obj}{path}" + (f": {each.text}" if each.text else "")), err=True)
