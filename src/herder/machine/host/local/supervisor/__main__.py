"""`python -m herder.machine.host.local.supervisor DIRECTORY`, in its own session.

Its lock shows that it runs, and its PID. SIGTERM shuts the machine down, SIGUSR1 reconnects it to the network; if it
dies, the kernel kills the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from herder.engine.runner.shim import kernel
from herder.machine.host.local import links, locks
from herder.machine.host.local.supervisor import CONFIG, CONSOLE, LOCK, STATUS, boot

_POWER_OFF = signal.SIGRTMIN + 4  # systemd as PID 1 powers off on it
_REBOOTED = signal.SIGHUP  # the kernel kills a PID namespace's init with it on reboot
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)


def main() -> None:
    os.chdir(sys.argv[1])
    locks.hold(LOCK)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    kernel.adopt_orphans()
    with open(CONFIG) as config:
        Supervisor(json.load(config)).run()


class Supervisor:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.guest = 0
        self.stopping = False
        self.boots = 0

    def run(self) -> None:
        again = True
        while again and not self.stopping:
            try:
                self._boot()
            except OSError as error:
                self._note(error=f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
                return
            again = self._serve() == _REBOOTED
        self._note()

    def _boot(self) -> None:
        self.boots += 1
        fabric = 0
        with boot.Guest(self.config, CONSOLE) as guest:
            self.guest = guest.pid
            fabric = self._connect()
            guest.go()
        self._note(guest=self.guest, fabric=fabric)

    def _connect(self) -> int:
        """Connect the machine; return the PID of the network's holder, or 0 if there is none: its creator
        asks again.
        """
        fabric = boot.inside_of(self.config["fabric"])
        if fabric:
            link, net = self.config["link"], self.config["net"]
            spaces = ("user", "net") if self.config["rootless"] else ("net",)
            with contextlib.suppress(links.LinkError):  # of an earlier boot: the kernel removes it with a delay
                links.apply([f"link delete dev {link}"], where=fabric, spaces=spaces)
            links.apply(
                [
                    f"link add {link} type veth peer address {net['mac']} name host0 netns {self.guest}",
                    f"link set {link} master br0 up",
                ],
                where=fabric,
                spaces=spaces,
            )
            links.apply(
                [
                    "link set lo up",
                    f"address add {net['address']}/{net['prefix']} broadcast + dev host0",
                    "link set host0 up",
                    f"route add default via {net['gateway']}",
                ],
                where=self.guest,
                spaces=spaces,
            )
        return fabric

    def _connect_again(self) -> None:
        """Reconnect; the machine continues in any case, and the status shows the result."""
        fabric = 0
        with contextlib.suppress(OSError):
            fabric = self._connect()
        self._note(guest=self.guest, fabric=fabric)

    def _serve(self) -> int:
        """Wait for the machine's PID 1; return the signal that ended it."""
        while True:
            heard = signal.sigwait(_HEARD)
            if heard == signal.SIGTERM:
                self.stopping = True
                os.kill(self.guest, _POWER_OFF)
            elif heard == signal.SIGUSR1:
                self._connect_again()
            elif (ended := self._ended()) is not None:
                return ended

    def _ended(self) -> int | None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == 0:
                return None
            if pid == self.guest:
                return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _note(self, **facts: Any) -> None:
        with open(f"{STATUS}.new", "w") as file:
            json.dump({"boots": self.boots, **facts}, file)
        os.replace(f"{STATUS}.new", STATUS)


if __name__ == "__main__":
    main()
