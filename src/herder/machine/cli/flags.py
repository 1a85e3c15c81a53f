"""Parse flags like Go's flag package: `-flag`, `--flag`, `--flag=value`, `--flag value`.

Values also come from the environment. Flags may follow arguments, except where the arguments are those of another
command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from herder.api.machines.drivers.flags import Flag, FlagType, Value
from herder.machine.errors import MachineError

_TRUE = {"1", "t", "true", "yes", "on"}
_FALSE = {"0", "f", "false", "no", "off", ""}


@dataclass(frozen=True, slots=True)
class Parsed:
    values: dict[str, Value]  # of every flag, including defaults
    given: dict[str, Value]  # of flags that were set
    arguments: list[str]

    def text(self, name: str) -> str:
        return str(self.values[name])

    def on(self, name: str) -> bool:
        return bool(self.values[name])


def parse(
    words: Sequence[str],
    flags: Iterable[Flag],
    environment: Mapping[str, str],
    *,
    shorts: Mapping[str, str] | None = None,
    until_argument: bool = False,
    help_line: str = "",
) -> Parsed:
    """`until_argument`: stop at the first argument; the rest belongs to another command."""
    known = {flag.name: flag for flag in flags}
    given = _from_environment(known.values(), environment)
    from_words: dict[str, Value] = {}
    arguments: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments += rest
            break
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            if until_argument:
                arguments += rest
                break
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        name = (shorts or {}).get(name, name)
        if name not in known:
            raise MachineError(f"unknown flag {word.partition('=')[0]}{_suggestion(name, known)}", help_line)
        flag = known[name]
        if flag.type is FlagType.BOOL:
            from_words[name] = _read(flag, value, f"--{name}") if has_value else True
            continue
        if not has_value:
            if not rest:
                raise MachineError(f"flag --{name} requires a value", help_line)
            value = rest.pop(0)
        read = _read(flag, value, f"--{name}")
        before = from_words.get(name, ())
        if isinstance(read, tuple) and isinstance(before, tuple):
            read = (*before, *read)
        from_words[name] = read
    given |= from_words
    defaults = {flag.name: flag.default if flag.default != "" else flag.empty for flag in known.values()}
    return Parsed({**defaults, **given}, given, arguments)


def _from_environment(flags: Iterable[Flag], environment: Mapping[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for flag in flags:
        text = environment.get(flag.env) if flag.env else None
        if text and flag.type is FlagType.LIST:
            found[flag.name] = tuple(part.strip() for part in text.split(","))
        elif text:
            found[flag.name] = _read(flag, text, f"${flag.env}")
    return found


def _read(flag: Flag, text: str, source: str) -> Value:
    match flag.type:
        case FlagType.INT:
            try:
                return int(text)
            except ValueError:
                raise MachineError(f'{source}: "{text}" is not an integer') from None
        case FlagType.BOOL:
            if text.lower() in _TRUE | _FALSE:
                return text.lower() in _TRUE
            raise MachineError(f'{source}: "{text}" is not a boolean', "use true or false")
        case FlagType.LIST:
            return (text,)
        case _:
            return text


def _suggestion(name: str, known: Mapping[str, Flag]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean --{near[0]}?)" if near else ""


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """Contents of a command's help page besides its name and summary."""

    arguments: str  # as in the usage line
    examples: tuple[str, ...]
    flags: tuple[Flag, ...] = ()
    shorts: Mapping[str, str] = field(default_factory=dict)

    def page(self, command: str, summary: str) -> str:
        usage = " ".join(
            filter(None, ("Usage: herder-machine", command, "[OPTIONS]" * bool(self.flags), self.arguments))
        )
        options = f"\n\nOptions:\n\n{described(self.flags, self.shorts)}" if self.flags else ""
        return f"{usage}\n\n{summary}{options}\n\nExamples:\n\n{listed(self.examples)}"


def listed(examples: Iterable[str]) -> str:
    return "\n".join(f"   {example}" for example in examples)


def described(flags: Iterable[Flag], shorts: Mapping[str, str] | None = None) -> str:
    """Format flags for a help page like rancher-machine."""
    long_to_short = {long: short for short, long in (shorts or {}).items()}
    lines = []
    for flag in sorted(flags, key=lambda flag: flag.name):
        word = f"--{flag.name}" + (f", -{long_to_short[flag.name]}" if flag.name in long_to_short else "")
        if flag.type is FlagType.LIST:
            word = f"{word} [{word} option {word} option]"
        elif flag.type is FlagType.INT or flag.default not in ("", (), False):
            word += f' "{flag.default if flag.default != "" else 0}"'
        elif flag.type is FlagType.STRING:
            word += " "
        lines.append(f"   {word}\t{flag.usage}" + (f" [${flag.env}]" if flag.env else ""))
    return "\n".join(lines)
