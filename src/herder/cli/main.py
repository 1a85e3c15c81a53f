"""The `herder` command. Each word lives in a module of its own, imported only when it is used."""

from __future__ import annotations

import importlib
from typing import Any

import click

from herder import __version__

# word → (module, what it does): the help page needs no imports beyond this table.
WORDS = {
    "up": ("up", "Run the API server and all controllers in this process"),
    "run": ("run", "Run the controllers on an existing Kubernetes cluster"),
    "demo": ("demo", "Show it working, on this machine, in a few seconds"),
    "create": ("creating", "Make a cluster: its machines, and Kubernetes on them"),
    "scale": ("changing", "Have more or fewer machines in a cluster"),
    "upgrade": ("changing", "Bring a cluster to another version, on the machines that it has"),
    "delete": ("deleting", "Remove a cluster and its machines"),
    "get": ("get", "List objects, or show one"),
    "describe": ("describe", "Show a cluster and how each part of it is"),
    "logs": ("machine_logs", "Show what became of a machine or a cluster, also when it is gone"),
    "ssh": ("ssh", "Open a shell on a machine, or run a command there"),
    "scp": ("scp", "Copy files to a machine or from it"),
    "import": ("importing", "Manage a cluster that exists from here"),
    "register": ("registering", "Print the command that adds a machine of yours to a cluster"),
    "agent": ("agent", "Run the agent of a managed cluster, or make its image"),
    "installer": ("installer", "Make images that machines install Kubernetes from"),
    "login": ("login", "Log in at a manager, for kubectl and herder"),
    "token": ("token", "Make, list and revoke tokens of your own"),
    "kubeconfig": ("kubeconfig", "Print or merge a kubeconfig for a managed cluster"),
    "users": ("users", "Create and list those who may log in"),
    "store": ("store", "Back up and restore the embedded API server's data"),
    "export": ("export", "Print objects in a form that another cluster can apply"),
}


class Words(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(WORDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in WORDS:
            return None
        module = importlib.import_module(f"herder.cli.{WORDS[name][0]}")
        command: click.Command = getattr(module, name, None) or module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in WORDS.items()])


@click.command(cls=Words, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="herder")
def herder() -> None:
    """Kubernetes clusters on machines of any kind, managed for life."""


def main() -> Any:
    return herder(prog_name="herder")
