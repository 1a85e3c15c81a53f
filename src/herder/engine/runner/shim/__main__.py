"""Runs one container: reads what to run from standard input, so that nothing secret is in arguments or on disk.

What is on disk, in the container's directory, is written whole and synced: `running` before the program is let go,
`exit` after it has ended. File descriptor 3 is a lock that the runner took; it is free once everything has ended.
File descriptor 4 tells the runner, should it still be there, that `running` is written: by being closed.
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

_LOCK, _NEWS = 3, 4
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, init.KILL)


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text.endswith(b"\n"):
        return  # the runner went away while it told us what to run
    config = json.loads(text)
    _keep_descriptors_from_the_program()
    # From here on signals wait until there is somebody to pass them on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    os.chdir(config["directory"])
    Container(config).run()


def _keep_descriptors_from_the_program() -> None:
    """It could free the lock, and would then be started twice. Others are those that the manager inherited itself."""
    for descriptor in (_LOCK, _NEWS):
        os.set_inheritable(descriptor, False)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > _NEWS:
            with contextlib.suppress(OSError):  # the one that listed them is closed already
                os.close(descriptor)


class Container:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.reports: list[dict[str, Any]] = []
        self._held = b""
        self._started = 0.0

    def run(self) -> None:
        try:
            _enter_namespaces(self.config["isolation"])
        except OSError as error:
            _keep("exit", {"error": f"{error.filename}: {error.strerror}", "finished": time.time()})
            return
        out, err, report, go = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)  # the host's: a volume of the pod may take the place of /dev
        pid = os.fork()
        if pid == 0:
            for unused in (out[0], err[0], report[0], go[1], _NEWS):
                os.close(unused)
            init.run({**self.config, "stdin": nothing, "stdout": out[1], "stderr": err[1]}, report[1], go[0])
        for unused in (nothing, out[1], err[1], report[1], go[0]):
            os.close(unused)
        for number in _PASSED_ON:
            signal.signal(number, lambda received, _frame: os.kill(pid, received))
        log = LogFile("log", limit=self.config["log_bytes"], keep=self.config["log_files"])
        self._serve(pid, {out[0]: "stdout", err[0]: "stderr"}, report[0], go[1], log)
        log.close()
        os.waitpid(pid, 0)
        _keep("exit", self._outcome())

    def _serve(self, pid: int, outputs: dict[int, str], report: int, go: int, log: LogFile) -> None:
        """Until the first process has ended and all that was said is written down."""
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
                    self._take_report(data, pid, go)
                else:
                    log.write(outputs[descriptor], data)
        for descriptor, stream in outputs.items():
            with contextlib.suppress(BlockingIOError):  # held open by one that escaped: not waited for
                while data := os.read(descriptor, 65536):
                    log.write(stream, data)

    def _take_report(self, data: bytes, pid: int, go: int) -> None:
        *lines, self._held = (self._held + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.reports.append(answer)
            if answer.get("ready"):
                self._started = time.time()
                _keep("running", {"pid": pid, "shim": os.getpid(), "started": self._started})
                os.close(_NEWS)
                os.write(go, b"g")
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)

    def _outcome(self) -> dict[str, Any]:
        fields = {key: value for report in self.reports for key, value in report.items()}
        outcome: dict[str, Any] = {"started": self._started, "finished": time.time()}
        if "error" in fields:
            return outcome | {"error": fields["error"]}
        if "start_error" in fields:
            return outcome | {"start_error": fields["start_error"]}
        status = fields.get("status", signal.SIGKILL)  # no word from the first process: it was killed, and all with it
        if os.WIFSIGNALED(status):
            return outcome | {"code": 128 + os.WTERMSIG(status), "signal": os.WTERMSIG(status)}
        return outcome | {"code": os.WEXITSTATUS(status)}


def _enter_namespaces(isolation: dict[str, bool]) -> None:
    if os.geteuid() != 0:
        # Without privileges, only the root of a user namespace of one's own may mount.
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        init.map_ids((0, uid), (0, gid))
    if isolation["pid"]:
        kernel.unshare(kernel.CLONE_NEWPID)


def _keep(name: str, content: dict[str, Any]) -> None:
    """Whole or not at all, and there after a power loss."""
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
