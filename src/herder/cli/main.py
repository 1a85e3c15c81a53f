"""The `herder` command. Each subcommand has its own module, which is imported only when the subcommand is used."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from herder import __version__
from herder.cli.examples import examples
from herder.engine.meta.printable import printable

# Subcommand → (module, summary). `herder --help` is rendered from this table without importing the modules.
COMMANDS = {
    "up": ("server.up", "Run the API server and all controllers in this process"),
    "down": ("server.down", "Stop the server that runs in the background"),
    "run": ("server.run", "Run the controllers on an existing Kubernetes cluster"),
    "doctor": ("server.doctor", "Check a host or a cluster before Herder is installed"),
    "support-bundle": ("server.support_bundle", "Collect diagnostics in an archive, with secrets redacted"),
    "demo": ("demo.demo", "Create, change and delete a demo cluster on this host"),
    "create": ("cluster.create", "Create a cluster and its machines"),
    "scale": ("cluster.scale", "Scale the machine pools of a cluster"),
    "upgrade": ("cluster.scale", "Upgrade Kubernetes on the existing machines of a cluster"),
    "snapshot": ("operations.snapshot", "Take, list and restore etcd snapshots of a cluster"),
    "rotate": ("operations.rotate", "Rotate the certificates or encryption keys of a cluster"),
    "redeploy": ("operations.redeploy", "Redeploy the node agents of a cluster"),
    "rollback": ("operations.rollback", "Undo the last upgrade or restore of a cluster"),
    "operations": ("operations.status", "Show the operation of a cluster, or abort it"),
    "delete": ("cluster.delete", "Delete a cluster and its machines"),
    "resume": ("server.resume", "Manage clusters again after the manager was restored from a backup"),
    "wait": ("cluster.wait", "Wait until a cluster is ready or deleted"),
    "get": ("get", "List objects or show one"),
    "describe": ("cluster.inspect.describe", "Show the status of a cluster and its machines"),
    "logs": ("machine.logs", "Show provisioning logs of a cluster or machine, including deleted ones"),
    "ssh": ("machine.ssh", "Open a shell on a machine or run a command there"),
    "scp": ("machine.scp", "Copy files to or from a machine"),
    "import": ("cluster.import_cluster", "Import an existing cluster"),
    "register": ("machine.register", "Print the command that registers an existing machine in a cluster"),
    "agent": ("image.agent", "Run the cluster agent or build its image"),
    "image": ("image.save", "Write images to archives, which a manager can serve to machines"),
    "installer": ("image.installer", "Build images that machines install Kubernetes from"),
    "login": ("auth.login", "Log in to a manager and update your kubeconfig"),
    "token": ("auth.token", "Create, list and revoke your API tokens"),
    "kubeconfig": ("cluster.kubeconfig", "Print or merge the kubeconfig of a managed cluster"),
    "logout": ("auth.logout", "Revoke the token of your login and remove it"),
    "users": ("auth.users", "Create, list and delete users and set their passwords"),
    "grant": ("auth.grant", "Grant a role to a user, or list the roles of a user"),
    "revoke": ("auth.grant", "Revoke a role of a user"),
    "version": ("server.version", "Print the versions of this command and of the manager"),
    "completion": ("completion", "Print the completion script of a shell"),
    "convert": ("cluster.convert", "Convert a Rancher export to objects that this manager accepts"),
    "store": ("server.store", "Back up and restore the data of the embedded API server"),
    "export": ("server.export", "Print objects as YAML that another cluster can apply"),
}


class InvalidUsage(click.ClickException):
    """A usage error whose first line is the cause. Click prints the usage and a blank line before it."""

    exit_code = click.UsageError.exit_code

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message())
        self._path = error.ctx.command_path if error.ctx is not None else "herder"

    def show(self, file: IO[Any] | None = None) -> None:
        super().show(file)
        click.echo(f"Run '{self._path} --help' for usage.", file=file, err=file is None)


@contextmanager
def _cause_first() -> Iterator[None]:
    """Report errors with their cause in the first line, without control characters."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise InvalidUsage(error) from None
    except click.ClickException as error:
        # It may quote objects and servers, which must not control the terminal.
        raise click.ClickException(printable(error.message)) from error


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"herder.cli.{COMMANDS[name][0]}")
        command: click.Command = getattr(module, name, None) or module.command
        return command

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _cause_first():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _cause_first():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "herder demo",
        "herder up",
        "herder create cluster meadow --servers 1 --workers 2",
        "herder describe cluster meadow",
    ),
)
@click.version_option(__version__, prog_name="herder")
def herder() -> None:
    """Provision Kubernetes clusters and manage their machines.

    Run `herder COMMAND --help` for the options and examples of a command.
    """


def main() -> Any:
    return herder(prog_name="herder")
