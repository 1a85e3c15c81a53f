"""Command lines are parsed as the Go program parses them."""

from __future__ import annotations

import pytest

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.cli.flags import described, parse
from herder.machine.errors import MachineError

FLAGS = (
    Flag("x-name", "A name", default="nobody", env="X_NAME"),
    Flag("x-size", "A size", FlagType.INT, 16, "X_SIZE"),
    Flag("x-wet", "Whether it is wet", FlagType.BOOL, False, "X_WET"),
    Flag("x-tag", "Tags", FlagType.LIST, ("default",), "X_TAG"),
    Flag("x-empty", "Nothing"),
)


@pytest.mark.parametrize(
    ("line", "environment", "expected"),
    [
        ("", {}, {}),
        ("--x-name a", {}, {"x-name": "a"}),
        ("-x-name=a", {}, {"x-name": "a"}),
        ("-n a", {}, {"x-name": "a"}),
        ("--x-name=a=b", {}, {"x-name": "a=b"}),
        ("--x-name=", {}, {"x-name": ""}),
        ("--x-name -dash", {}, {"x-name": "-dash"}),
        ("--x-size 8", {}, {"x-size": 8}),
        ("--x-wet", {}, {"x-wet": True}),
        ("--x-wet=false", {"X_WET": "1"}, {"x-wet": False}),
        ("--x-tag a --x-tag=b,c", {}, {"x-tag": ("a", "b,c")}),
        ("", {"X_TAG": "a, b"}, {"x-tag": ("a", "b")}),
        ("--x-tag a", {"X_TAG": "b"}, {"x-tag": ("a",)}),
        ("", {"X_SIZE": "9", "X_WET": "true"}, {"x-size": 9, "x-wet": True}),
        ("--x-name first", {"X_NAME": "second"}, {"x-name": "first"}),
        ("", {"X_NAME": ""}, {}),
    ],
)
def test_flag_values_are_parsed(line: str, environment: dict[str, str], expected: dict[str, Value]) -> None:
    parsed = parse(line.split(), FLAGS, environment, shorts={"n": "x-name"})
    assert parsed.given == expected
    defaults = {"x-name": "nobody", "x-size": 16, "x-wet": False, "x-tag": ("default",), "x-empty": ""}
    assert parsed.values == defaults | expected


@pytest.mark.parametrize(
    ("line", "until_argument", "arguments"),
    [
        ("a --x-wet b", False, ["a", "b"]),
        ("a --x-wet b", True, ["a", "--x-wet", "b"]),
        ("--x-wet -- --x-name", False, ["--x-name"]),
        ("- a", False, ["-", "a"]),
    ],
)
def test_arguments_are_separated_from_flags(line: str, until_argument: bool, arguments: list[str]) -> None:
    assert parse(line.split(), FLAGS, {}, until_argument=until_argument).arguments == arguments


@pytest.mark.parametrize(
    ("line", "environment", "message"),
    [
        ("--x-nme a", {}, r"unknown flag --x-nme \(did you mean --x-name\?\); see help"),
        ("--x-nme=secret", {}, r"unknown flag --x-nme \("),
        ("--x-size big", {}, '--x-size: "big" is not an integer'),
        ("", {"X_SIZE": "big"}, r'\$X_SIZE: "big" is not an integer'),
        ("--x-wet=maybe", {}, '--x-wet: "maybe" is not a boolean; use true or false'),
        ("--x-name", {}, "flag --x-name requires a value; see help"),
    ],
)
def test_errors_name_the_flag(line: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        parse(line.split(), FLAGS, environment, help_line="see help")


def test_help_lines_match_the_go_program() -> None:
    """Programs that parse the flags of a driver from its help output can parse ours too."""
    assert described(FLAGS, {"n": "x-name"}).splitlines() == [
        "   --x-empty \tNothing",
        '   --x-name, -n "nobody"\tA name [$X_NAME]',
        '   --x-size "16"\tA size [$X_SIZE]',
        "   --x-tag [--x-tag option --x-tag option]\tTags [$X_TAG]",
        "   --x-wet\tWhether it is wet [$X_WET]",
    ]
