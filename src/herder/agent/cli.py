"""Command line of the agent: sentinel, service, validate-config, validate-connection, version."""

import os
import signal
import sys
import threading
from contextlib import closing
from typing import Any, Callable, List, Optional

from herder import __version__
from herder.agent import config as configuration
from herder.agent.apply.executor import NodeExecutor
from herder.agent.apply.journal import Journal
from herder.agent.config import Config, ConfigError
from herder.agent.local.directory import Local
from herder.agent.log import Log
from herder.agent.program import Program
from herder.agent.secret import kubeconfig
from herder.agent.secret.sentinel import Remote

_USAGE = """usage: herder-agent COMMAND

Apply the plans of this node.

commands:
  sentinel                    Apply plans until the process is stopped
  service                     Apply plans as a Windows service
  validate-config FILE        Check the fields and the permissions of a configuration file
  validate-connection FILE    Check the fields and the kubeconfig of a connection file
  version                     Print the version
  help                        Print this help

environment:
  CATTLE_AGENT_CONFIG         Path of the configuration file (default: {default})
  CATTLE_AGENT_STRICT_VERIFY  If true, require a CA in the kubeconfig and trust no other CA
  CATTLE_LOGLEVEL             Minimum log level: trace, debug, info, warning or error (default: info)

examples:
  herder-agent sentinel
  herder-agent validate-config /etc/rancher/agent/config.yaml
  herder-agent validate-connection /var/lib/rancher/agent/rancher2_connection_info.json
"""


def main(arguments: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    command = words[0] if words else "help"
    try:
        if command in ("version", "--version", "-v"):
            print(f"herder-agent version {__version__}")
        elif command in ("help", "--help", "-h"):
            print(_USAGE.format(default=configuration.DEFAULT_PATH), end="")
        elif command == "sentinel":
            return sentinel(_config_path(), _until_signal)
        elif command == "service":
            if os.name != "nt":
                raise ConfigError("service runs only on Windows; use: herder-agent sentinel")
            return sentinel(_config_path(), _as_service)
        elif command == "validate-config":
            configuration.load(_operand(words, command))
            print("the configuration is valid")
        elif command == "validate-connection":
            connection = configuration.load_connection(_operand(words, command))
            kubeconfig.parse(connection.kubeconfig)
            print(f"the connection is valid: secret {connection.namespace}/{connection.secret_name}")
        else:
            raise ConfigError(f"unknown command {command!r}; run: herder-agent help")
    except (ConfigError, kubeconfig.KubeconfigError, ValueError) as error:
        print(f"herder-agent: {error}", file=sys.stderr)
        return 1
    return 0


def _config_path() -> str:
    return os.environ.get("CATTLE_AGENT_CONFIG") or configuration.DEFAULT_PATH


def _operand(words: List[str], command: str) -> str:
    if len(words) != 2:
        raise ConfigError(f"usage: herder-agent {command} FILE")
    return words[1]


def sentinel(path: str, wait: "Callable[[Daemon], int]") -> int:
    log = Log(os.environ.get("CATTLE_LOGLEVEL") or "info")
    config = configuration.load(path)
    log.say("info", f"herder-agent {__version__}, configuration {path}")
    os.umask(0o022)
    os.makedirs(config.state_directory, 0o700, exist_ok=True)
    with _only_one(config), closing(NodeExecutor(config, log)) as executor:
        parts: List[Any] = []
        if config.remote_enabled:
            parts.append(_remote(config, executor, log))
        if config.local_enabled:
            parts.append(Local(config.local_plan_directory, executor, log))
        return wait(Daemon(parts))


def _remote(config: Config, executor: NodeExecutor, log: Log) -> Remote:
    connection = configuration.load_connection(config.connection_info_file)
    access = kubeconfig.parse(connection.kubeconfig)
    strict = os.environ.get("CATTLE_AGENT_STRICT_VERIFY", "").lower() == "true"
    if strict and not access.ca:
        raise ConfigError(
            f"{config.connection_info_file}: the kubeconfig has no certificate-authority-data, "
            "which CATTLE_AGENT_STRICT_VERIFY=true requires"
        )
    program = Program(config.state_directory)
    return Remote(access, connection, strict, executor, Journal(config.state_directory), log, program)


def _only_one(config: Config) -> Any:
    """Lock the state directory, because two agents would run every plan twice. The lock ends with the process."""
    stream = open(os.path.join(config.state_directory, "lock"), "a")  # noqa: SIM115 - held until the end
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # Windows starts a service only once
    except OSError:
        raise ConfigError(f"another herder-agent uses {config.state_directory}; stop it first") from None
    return stream


class Daemon:
    """Runs each part in a thread; if one ends by itself, all are stopped."""

    def __init__(self, parts: List[Any]) -> None:
        self._parts = parts
        self._failures: List[str] = []
        self._threads = [threading.Thread(target=self._guarded, args=(part.run,)) for part in parts]
        self.on_failure: Callable[[], None] = self.stop

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for part in self._parts:
            part.stop()

    def join(self) -> int:
        for thread in self._threads:
            thread.join()
        for text in self._failures:
            sys.stderr.write(text)
        return 1 if self._failures else 0

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException:
            import traceback

            self._failures.append(traceback.format_exc())
            self.on_failure()


class _Signalled(BaseException):
    """Raised in the main thread on a signal."""


def _until_signal(daemon: Daemon) -> int:
    def stop(*_: Any) -> None:
        raise _Signalled

    daemon.on_failure = lambda: os.kill(os.getpid(), signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        daemon.start()
        while True:
            signal.pause()
    except _Signalled:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal terminates at once
    daemon.stop()
    return daemon.join()


def _as_service(daemon: Daemon) -> int:
    """Run as a Windows service, where the service manager replaces signals."""
    import ctypes

    from herder.agent.windows import Service

    codes: List[int] = []

    def run() -> int:
        daemon.start()
        codes.append(daemon.join())
        return codes[0]

    Service(getattr(ctypes, "windll").advapi32, run, daemon.stop).serve()  # noqa: B009 - elsewhere there is none
    return codes[0]
