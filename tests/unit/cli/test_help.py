"""Every command of every program has a summary and an example, and every flag has a help text."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from herder.agent import cli as agent
from herder.api.machines.drivers.flags import Flag
from herder.cli.main import herder
from herder.machine.cli import create
from herder.machine.cli.context import GLOBAL_FLAGS
from herder.machine.cli.main import WORDS, command_help, run
from herder.machine.drivers import NATIVE, create_flags

PARSERS = (
    "herder.clusteragent.configuration",
    "herder.embedded.__main__",
    "herder.kubeadm.csr_approver",
    "herder.kubeadm.node_service",
    "herder.kubeadm.reencrypt",
    "herder.machine.host.__main__",
    "herder.machine.host.local.image",
    "herder.snapshots.program",
)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, f"{path} {name} is listed but does not exist"
            yield from commands(found, f"{path} {name}")


COMMANDS = dict(commands(herder, "herder"))


def is_sentence(text: str | None) -> bool:
    """Whether the text begins with a capital letter and ends with a period, as in kubectl (defaults may follow)."""
    text = (text or "").partition("  [")[0].strip()
    return text[:1].isupper() and text.endswith(".")


@pytest.mark.parametrize("path", COMMANDS)
def test_herder_commands_have_a_summary_and_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert is_sentence((command.help or "").partition("\n\n")[0].replace("\n", " ")), f"{path}: {command.help!r}"
    lines = (command.epilog or "").splitlines()
    assert lines[:1] == ["\b"], f"{path}: click would rewrap the examples"
    own = [line for line in lines if line.split("#")[0].strip().removeprefix("sudo ").startswith(path)]
    assert own, f"{path}: no example"


@pytest.mark.parametrize("path", COMMANDS)
def test_herder_flags_have_help(path: str) -> None:
    options = [each for each in COMMANDS[path].params if isinstance(each, click.Option)]
    missing = [each.opts[0] for each in options if not is_sentence(each.help)]
    assert not missing, f"{path}: {missing}"


@pytest.mark.parametrize("path", COMMANDS)
def test_herder_examples_are_accepted_by_the_parsers(path: str) -> None:
    """Flags of examples exist. Only parsing is checked: nothing runs."""
    flags = {
        flag for each in commands(COMMANDS[path], path) for parameter in each[1].params for flag in flags_of(parameter)
    }
    lines = (COMMANDS[path].epilog or "").replace("\\\n", " ").splitlines()
    for line in lines:
        arguments = line.split("#")[0].partition(" | ")[0].split()
        if arguments[:1] != ["herder"] or "agent" in arguments or path == "herder":
            continue
        used = {
            argument.partition("=")[0] for argument in arguments[: arguments.index("--") if "--" in arguments else None]
        }
        unknown = {argument for argument in used if argument.startswith("-")} - flags
        assert not unknown, f"{path}: {line.strip()}: {unknown}"


def flags_of(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []


# --- herder-machine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [command for command in WORDS if command != "create"])
def test_machine_commands_have_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        assert run([command, flag], {}) == 0
        output = capsys.readouterr().out
        assert output == command_help(command) + "\n"
        assert output.startswith(f"Usage: herder-machine {command}")
        assert f"Examples:\n\n   herder-machine {command}" in output
    module = importlib.import_module(f"herder.machine.cli.{WORDS[command][0]}")
    assert_described(module.HELP_PAGES[command].flags)


@pytest.mark.parametrize("driver", ["", *NATIVE])
def test_create_has_help_with_an_example(driver: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["create", *(["--driver", driver] if driver else []), "--help"], {}) == 0
    output = capsys.readouterr().out
    assert "Examples:\n\n   herder-machine create" in output
    assert_described((*GLOBAL_FLAGS, *create.FLAGS, create.HELP, *((create_flags(driver) or ()) if driver else ())))


def test_the_machine_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"], {}) == 0
    assert "Examples:\n   herder-machine create" in capsys.readouterr().out


def assert_described(flags: tuple[Flag, ...]) -> None:
    assert not [flag.name for flag in flags if not flag.usage]


# --- agents and other programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", PARSERS)
def test_other_programs_have_help_with_an_example(module: str) -> None:
    parser: argparse.ArgumentParser = importlib.import_module(module)._parser()
    assert parser.description
    assert f"\n  {parser.prog} " in (parser.epilog or ""), "no example"
    assert isinstance(parser._get_formatter(), argparse.RawDescriptionHelpFormatter), "examples would be rewrapped"
    assert not [action.dest for action in parser._actions if not action.help]


def test_the_node_agent_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert agent.main(["--help"]) == 0
    output = capsys.readouterr().out
    for command in ("sentinel", "service", "validate-config", "validate-connection", "version", "help"):
        assert f"\n  {command} " in output
    assert "\nexamples:\n  herder-agent sentinel\n" in output


def test_every_parser_is_listed() -> None:
    """A program with a new argument parser must be added to PARSERS."""
    root = Path(agent.__file__).parents[1]
    found = {
        ".".join(("herder", *file.relative_to(root).with_suffix("").parts))
        for file in root.rglob("*.py")
        if "ArgumentParser(" in file.read_text()
    }
    assert found == set(PARSERS)
