"""A manager on each engine, and users who log in to it and run commands as a person does."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from herder.api.management.commands import ca_checksum
from tests.support.canaries import canary
from tests.support.capi import HerderRun, webhook_flags
from tests.support.embedded import HERDER, Embedded
from tests.support.engines import CONTROLLERS, Engine
from tests.support.kube import RealKube, free_port
from tests.support.manager.machines import host_shutdown
from tests.support.manager.node_agents import eventually
from tests.support.peers import peer

FLAGS = ("--capi-core=own", "--machines")


@dataclass(frozen=True)
class Person:
    """A shell with its own home directory and kubeconfig."""

    kubeconfig: Path
    home: Path

    def run(
        self, *arguments: str | Path, stdin: str = "", program: Path = HERDER, timeout: float = 150
    ) -> subprocess.CompletedProcess[str]:
        removed = ("HERDER_DATA_DIR", "XDG_STATE_HOME")
        clean = {name: value for name, value in os.environ.items() if name not in removed}
        home = {"HOME": str(self.home), "HERDER_DATA_DIR": str(self.home / "none")}
        return subprocess.run(
            [program, *arguments],
            input=stdin,
            env=clean | home | {"KUBECONFIG": str(self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def herder(self, *arguments: str | Path, stdin: str = "") -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 0, f"herder {arguments}: {result.stdout}{result.stderr}"
        return result.stdout

    def expect_failure(self, *arguments: str | Path, stdin: str = "") -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.returncode == 1, f"herder {arguments}: exit {result.returncode}: {result.stdout}{result.stderr}"
        assert "Traceback" not in result.stderr
        return result.stderr

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        result = self.run(*arguments, stdin=stdin, program=peer("kubectl"))
        assert not check or result.returncode == 0, f"kubectl {arguments}: {result.stderr}"
        return result.stdout


@dataclass(frozen=True)
class Manager:
    """A running manager. Users of `url` log in; the administrator uses the API server's own credentials."""

    directory: Path
    url: str
    engine: Engine

    @property
    def administrator(self) -> Person:
        return Person(self.engine.kubeconfig, self._home("administrator"))

    def person(self, name: str) -> Person:
        """A person who is not logged in."""
        home = self._home(name)
        return Person(home / "kubeconfig", home)

    def user(self, name: str) -> Person:
        """Create a user with the default roles, and log in."""
        password = canary(f"password of {name}") + "\n"
        self.administrator.herder("users", "create", name, "--password-stdin", stdin=password)
        person = self.person(name)
        flags = ("-u", name, "--password-stdin", "--ca-checksum", self.checksum())
        person.herder("login", self.url, *flags, stdin=password)
        return person

    def checksum(self) -> str:
        output = self.administrator.herder("get", "settings.management.cattle.io", "cacerts", "-o", "yaml")
        setting = yaml.safe_load(output)
        return ca_checksum(setting.get("value") or setting.get("default") or "")

    def status(self, person: Person, path: str) -> int:
        """Status of a GET by a logged-in person; the path is sent as it is."""
        config = yaml.safe_load(person.kubeconfig.read_text())
        token, address = config["users"][0]["user"]["token"], urlsplit(self.url)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection(address.hostname or "", address.port, context=context, timeout=30)
        with closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status

    def _home(self, name: str) -> Path:
        home = self.directory / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def wait_until_users_exist(self) -> None:
        def has_admin() -> bool | None:
            return "admin" in self.administrator.run("users", "list").stdout or None

        eventually(has_admin, "the first user")


@contextmanager
def embedded_manager(directory: Path) -> Iterator[Manager]:
    data = directory / "data"
    server = Embedded(data, flags=(*FLAGS, "--gateway"), listen=f"127.0.0.1:{free_port()}")
    with host_shutdown(data), server:
        manager = Manager(directory, server.url, Engine("embedded", server.kubeconfig))
        manager.wait_until_users_exist()
        yield manager


@contextmanager
def real_manager(directory: Path) -> Iterator[Manager]:
    (directory / "kube").mkdir(parents=True)
    with RealKube(directory / "kube", controller_manager=True, controllers=CONTROLLERS) as kube:
        engine, data, port = Engine("real", kube.kubeconfig), directory / "herder", free_port()
        gateway = ("--gateway-listen", f"127.0.0.1:{port}", "--set", f"server-url=https://127.0.0.1:{port}")
        with host_shutdown(data), HerderRun(engine, data, "--runner", *FLAGS, *gateway, *webhook_flags()):
            manager = Manager(directory, f"https://127.0.0.1:{port}", engine)
            manager.wait_until_users_exist()
            yield manager


MANAGERS: Mapping[str, Callable[[Path], AbstractContextManager[Manager]]] = {
    "embedded": embedded_manager,
    "real": real_manager,
}
