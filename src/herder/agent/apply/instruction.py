"""Run an instruction in its own directory and process group, with its output in files, so that lines may have any
length.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from typing import IO, Dict, List, Optional, cast

from herder.agent.core.events import Finished
from herder.agent.core.plan import Instruction

DEFAULT_COMMAND = "run.sh"
_MAX_OUTPUT = 1 << 20
_GRACE = 10.0
_STREAMS = 2  # stdout and stderr


class InstructionRunner:
    """Runs one instruction at a time; `end` may be called from another thread."""

    def __init__(self, scratch: str) -> None:
        """`scratch` is a private directory."""
        os.makedirs(scratch, 0o700, exist_ok=True)
        self._scratch = scratch
        self._prepared: List[IO[bytes]] = []
        self._lock = threading.Lock()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.prepare()

    def prepare(self) -> None:
        """Create the output files of the next instruction."""
        while len(self._prepared) < _STREAMS:
            self._prepared.append(self._file())

    def close(self) -> None:
        for stream in self._prepared:
            stream.close()

    def run(self, directory: str, instruction: Instruction, attempt: int) -> Finished:
        command = instruction.command or os.path.join(directory, DEFAULT_COMMAND)
        environment = environment_of(directory, instruction, attempt)
        self.prepare()
        with self._prepared.pop() as stdout, self._prepared.pop() as stderr:
            try:
                with self._lock:  # `end` waits here until there is a process to terminate
                    process = self._process = subprocess.Popen(
                        [command, *instruction.args],
                        cwd=directory,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                    )
            except (OSError, ValueError) as reason:
                return Finished(-1, error=f"cannot be started: {reason}")
            error = _wait(process, instruction.timeout)
            with self._lock:
                self._process = None
            return Finished(process.returncode if not error else -1, _head(stdout), _end(stderr), error)

    def end(self) -> None:
        """Terminate a running instruction with its children."""
        with self._lock:
            process = self._process
        if process is not None and process.poll() is None:
            _end_group(process)

    def _file(self) -> IO[bytes]:
        """Open an append-only file and unlink it: a child that stays behind may keep writing."""
        if os.name == "nt":  # Windows cannot unlink an open file
            return cast(IO[bytes], tempfile.TemporaryFile(dir=self._scratch, buffering=0))
        path = os.path.join(self._scratch, "output")
        stream = open(path, "a+b", buffering=0)  # noqa: SIM115 - whoever asked closes it
        os.unlink(path)
        return stream


def environment_of(directory: str, instruction: Instruction, attempt: int) -> Dict[str, str]:
    environment = dict(os.environ)
    for each in instruction.env:
        name, _, value = each.partition("=")
        if name:
            environment[name] = value
    environment["CATTLE_AGENT_EXECUTION_PWD"] = directory
    environment["CATTLE_AGENT_ATTEMPT_NUMBER"] = str(attempt)
    environment["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{directory}"
    return environment


def _wait(process: "subprocess.Popen[bytes]", timeout: int) -> str:
    """Return "" or why it was terminated."""
    try:
        process.wait(timeout or None)
    except subprocess.TimeoutExpired:
        _end_group(process)
        return f"did not end within {timeout} s, and was ended"
    return ""


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    if os.name == "nt":
        subprocess.call(["taskkill", "/T", "/F", "/PID", str(process.pid)])
        process.wait()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(_GRACE)
            return
        except subprocess.TimeoutExpired:
            continue


def _head(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read(_MAX_OUTPUT)


def _end(stream: IO[bytes]) -> bytes:
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - _MAX_OUTPUT))
    return stream.read(_MAX_OUTPUT)
