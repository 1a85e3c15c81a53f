"""What a machine's Job runs: it fetches a driver of others' making, and keeps all output as the Job's last words.

python -m herder.machine.entrypoint [--program rancher-machine] [--driver-download-url=URL --driver-hash=SHA256] WORD…
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from herder.api.machines.names import DRIVER_VARIABLE
from herder.machine import rancher
from herder.machine.cli.context import GLOBAL_FLAGS, GLOBAL_SHORTS, Context, say
from herder.machine.cli.flags import parse
from herder.machine.cli.main import guarded, run

TERMINATION_LOG = Path("/dev/termination-log")


def main() -> int:
    # As PID 1 of a container, only handled signals end the process. What was created is recorded.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    with _last_words(TERMINATION_LOG) as log:
        return guarded(lambda: _main(sys.argv[1:], dict(os.environ), log))


def _main(words: Sequence[str], environment: dict[str, str], log: BinaryIO) -> int:
    own, rest = _own_flags(words)

    def other(words: Sequence[str], environment: Mapping[str, str]) -> int:
        return _run_other(words, environment, log)

    with contextlib.ExitStack() as stack:
        if url := own["driver-download-url"]:
            directory = _fetched_driver(url, own["driver-hash"], stack)
            environment["PATH"] = f"{directory}:{environment.get('PATH', os.defpath)}"
        if own["program"] == rancher.PROGRAM:
            return other(rest, environment)
        return run(rest, environment, other=other)


def _fetched_driver(url: str, checksum: str, stack: contextlib.ExitStack) -> str:
    """Return the directory that holds the driver until exit."""
    import tempfile

    from herder.machine import plugins

    say(f"Downloading driver from {url}")
    if not checksum:
        say("driver-hash not provided, will not verify after download")
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="herder-driver-"))
    plugins.install(url, checksum, Path(directory))
    return directory


def _own_flags(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    own = {"program": "", "driver-download-url": "", "driver-hash": ""}
    rest = list(words)
    if rest[:1] == ["--program"]:
        own["program"] = rest[1] if len(rest) > 1 else ""
        rest = rest[2:]
    others = []
    for word in rest:
        name, has_value, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and has_value and name in own:
            own[name] = value
        else:
            others.append(word)
    return own, others


def _run_other(words: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> int:
    """Run rancher-machine as a child, to capture its output. `--k=v` becomes two arguments, as in its image."""
    import subprocess

    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else (word,))]
    program = rancher.program(environment)
    with _checked_secret(words, environment) as reached, _private_plugins(program, environment) as (relay, variables):
        child = subprocess.Popen(
            [relay, *reached, *split],  # it starts plugins by the name by which it was started itself
            executable=program,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        assert isinstance(child.stdout, io.BufferedReader)
        while chunk := child.stdout.read1():
            for target in (sys.stdout.buffer, log):
                target.write(chunk)
                target.flush()
        status = child.wait()
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _private_plugins(program: str, environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and environment with which rancher-machine starts each plugin behind our relay."""
    import tempfile

    from herder.machine import plugin_relay

    with tempfile.TemporaryDirectory(prefix="herder-plugins-") as directory:
        relay = plugin_relay.write_programs(Path(directory), environment.get(DRIVER_VARIABLE, ""))
        path = f"{directory}:{environment.get('PATH', os.defpath)}"
        yield str(relay), {**environment, "PATH": path, plugin_relay.PROGRAM_VARIABLE: program}


@contextlib.contextmanager
def _checked_secret(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Sequence[str]]:
    """Yield flags that make rancher-machine access its Secret through our relay; none for a state directory."""
    if list(words[:1]) in (["--version"], ["--help"]):  # these read no record
        yield ()
        return
    options = parse(words, GLOBAL_FLAGS, environment, shorts=GLOBAL_SHORTS, until_argument=True)
    name, kubeconfig = options.text("secret-name"), options.text("kubeconfig")
    if not name:
        yield ()
        return
    import tempfile

    from herder.machine.state.kubernetes import SecretClient, connection_for
    from herder.machine.state.relay import relayed

    client = SecretClient(connection_for(kubeconfig), options.text("secret-namespace"), name)
    store, driver = Context(options, environment).store_path, environment.get(DRIVER_VARIABLE, "")
    with (
        tempfile.TemporaryDirectory(prefix="herder-state-") as directory,
        relayed(client, Path(directory), store_path=store, driver=driver) as reached,
    ):
        yield ("--kubeconfig", str(reached))


@contextlib.contextmanager
def _last_words(path: Path) -> Iterator[BinaryIO]:
    """Copy all output to the termination log, if it exists."""
    kept = path if os.access(path, os.W_OK) else Path(os.devnull)
    with (
        kept.open("ab") as log,
        contextlib.redirect_stdout(_Both(sys.stdout, log)),
        contextlib.redirect_stderr(_Both(sys.stderr, log)),
    ):
        yield log


class _Both(io.TextIOBase):
    def __init__(self, shown: TextIO, log: BinaryIO) -> None:
        self._shown, self._log = shown, log

    @property
    def buffer(self) -> BinaryIO:
        return self._shown.buffer

    def fileno(self) -> int:
        return self._shown.fileno()

    def write(self, text: str) -> int:
        self._log.write(text.encode())
        return self._shown.write(text)

    def flush(self) -> None:
        self._log.flush()
        self._shown.flush()


if __name__ == "__main__":
    sys.exit(main())
