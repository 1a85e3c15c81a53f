"""`herder ssh`: open a shell or run a command on a machine."""

from __future__ import annotations

import sys

import click

from herder.app.host.paths import kubeconfig_option, namespace_option
from herder.cli.examples import examples
from herder.cli.machine.ssh_access import load


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "herder ssh meadow-workers-x7k2p-abcde",
        "herder ssh meadow-workers-x7k2p-abcde -- systemctl status rancher-system-agent",
    ),
)
@click.argument("machine")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@namespace_option("the Machine")
@click.option(
    "--accept-new-host-key", is_flag=True, help="Replace the known host key with the key that the machine presents now."
)
@kubeconfig_option
def command(
    machine: str, words: tuple[str, ...], namespace: str | None, accept_new_host_key: bool, kubeconfig: str | None
) -> None:
    """Open a shell on MACHINE, or run COMMAND there.

    The exit code of COMMAND becomes the exit code of herder.
    """
    from herder.machine.errors import MachineError
    from herder.machine.ssh.session import interactive

    entry = load(machine, namespace, kubeconfig)
    try:
        code = interactive(
            entry.saved, words, remember=entry.remember_host_key, accept_new_host_key=accept_new_host_key
        )
    except MachineError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)
