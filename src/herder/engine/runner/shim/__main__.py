"""Entry point of the shim: runs one container.

The configuration comes from standard input, so that no secret is in arguments or on disk. The files in the container's
directory are written atomically and fsynced: `running` before the program starts, `exit` after it has ended. File
descriptor 3 is a lock that the runner took; it is free once everything has ended. File descriptor 4 is closed to notify
the runner that `running` is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import Any

from herder.engine.runner.shim import init, kernel
from herder.engine.runner.shim.logfile import LogFile

_LOCK, _STARTED_PIPE = 3, 4
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, init.KILL)


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text.endswith(b"\n"):
        return  # the runner exited while sending the configuration
    config = json.loads(text)
    _close_descriptors()
    # Block signals until there is a process to forward them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    os.chdir(config["directory"])
    Container(config).run()


def _close_descriptors() -> None:
    """Keep descriptors from the program: it could release the lock and would then be started twice.

    Descriptors above 4 were inherited by the manager.
    """
    for descriptor in (_LOCK, _STARTED_PIPE):
        os.set_inheritable(descriptor, False)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > _STARTED_PIPE:
            with contextlib.suppress(OSError):  # the descriptor of the directory listing is already closed
                os.close(descriptor)


class Container:
    """One container and its first process."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.reports: list[dict[str, Any]] = []
        self._partial = b""
        self._started = 0.0

    def run(self) -> None:
        try:
            _enter_namespaces(self.config["isolation"])
        except OSError as error:
            _write_record("exit", {"error": f"{error.filename}: {error.strerror}", "finished": time.time()})
            return
        out, err, report, go = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        dev_null = os.open(os.devnull, os.O_RDONLY)  # the host's: a volume may be mounted over /dev
        pid = os.fork()
        if pid == 0:
            for unused in (out[0], err[0], report[0], go[1], _STARTED_PIPE):
                os.close(unused)
            init.run({**self.config, "stdin": dev_null, "stdout": out[1], "stderr": err[1]}, report[1], go[0])
        for unused in (dev_null, out[1], err[1], report[1], go[0]):
            os.close(unused)
        for number in _FORWARDED:
            signal.signal(number, lambda received, _frame: os.kill(pid, received))
        log = LogFile("log", limit=self.config["log_bytes"], keep=self.config["log_files"])
        self._serve(pid, {out[0]: "stdout", err[0]: "stderr"}, report[0], go[1], log)
        log.close()
        os.waitpid(pid, 0)
        _write_record("exit", self._outcome())

    def _serve(self, pid: int, outputs: dict[int, str], report: int, go: int, log: LogFile) -> None:
        """Copy output and handle reports until the first process has ended and all output is written."""
        poll = select.poll()
        for descriptor in (*outputs, report):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        ended = False
        while not ended:
            for descriptor, _ in poll.poll():
                data = os.read(descriptor, 65536)
                if not data:
                    poll.unregister(descriptor)
                    ended = ended or descriptor == report
                elif descriptor == report:
                    self._handle_report(data, pid, go)
                else:
                    log.write(outputs[descriptor], data)
        for descriptor, stream in outputs.items():
            with contextlib.suppress(BlockingIOError):  # an escaped process keeps it open; do not wait
                while data := os.read(descriptor, 65536):
                    log.write(stream, data)

    def _handle_report(self, data: bytes, pid: int, go: int) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.reports.append(answer)
            if answer.get("ready"):
                self._started = time.time()
                _write_record("running", {"pid": pid, "shim": os.getpid(), "started": self._started})
                os.close(_STARTED_PIPE)
                os.write(go, b"g")
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    def _outcome(self) -> dict[str, Any]:
        fields = {key: value for report in self.reports for key, value in report.items()}
        outcome: dict[str, Any] = {"started": self._started, "finished": time.time()}
        if "error" in fields:
            return outcome | {"error": fields["error"]}
        if "start_error" in fields:
            return outcome | {"start_error": fields["start_error"]}
        # no report from the first process: it was killed with everything else
        status = fields.get("status", signal.SIGKILL)
        if os.WIFSIGNALED(status):
            return outcome | {"code": 128 + os.WTERMSIG(status), "signal": os.WTERMSIG(status)}
        return outcome | {"code": os.WEXITSTATUS(status)}


def _enter_namespaces(isolation: dict[str, bool]) -> None:
    if os.geteuid() != 0:
        # Without privileges, mounting requires a user namespace.
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        init.map_ids((0, uid), (0, gid))
    if isolation["pid"]:
        kernel.unshare(kernel.CLONE_NEWPID)


def _write_record(name: str, content: dict[str, Any]) -> None:
    """Write a record atomically and durably."""
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{name}.new", name)
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


if __name__ == "__main__":
    main()
