"""Configuration of the agent: flags, environment as set by the manifest, and mounted credentials."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from herder.api.management.manifest import CREDENTIALS_DIRECTORY, HEALTH_PORT

CREDENTIALS = Path(CREDENTIALS_DIRECTORY)
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


class ConfigurationError(ValueError):
    """The configuration is invalid; the message names the flag or variable, and what to do."""


@dataclass(frozen=True)
class Configuration:
    server: str  # https://…
    token: Path | str = field(repr=False)  # a file is read before each attempt, because tokens are rotated
    ca_checksum: str = ""
    strict: bool = False
    kubeconfig: Path | None = None
    allowed: frozenset[str] = frozenset()  # host:port that may be dialed besides the API server
    health: tuple[str, int] | None = None

    def read_token(self) -> str:
        if isinstance(self.token, str):
            return self.token
        try:
            return self.token.read_text().strip()
        except OSError as error:
            raise ConfigurationError(f"{self.token}: {error.strerror}") from None

    @property
    def tunnels(self) -> str:
        return "wss" + self.server.removeprefix("https")


def configuration(
    arguments: Sequence[str], environment: Mapping[str, str], credentials: Path = CREDENTIALS
) -> Configuration:
    options = _parser().parse_args(arguments)
    server = options.server or environment.get("CATTLE_SERVER") or _mounted(credentials / "url")
    return Configuration(
        server=_checked_server(server),
        token=_token(options.token_file, environment, credentials),
        ca_checksum=_checked_sum(options.ca_checksum or environment.get("CATTLE_CA_CHECKSUM", "")),
        strict=environment.get("STRICT_VERIFY", "").lower() == "true",
        kubeconfig=options.kubeconfig,
        allowed=frozenset(_checked_address("--allow", each) for each in options.allow),
        health=_health(options.health, in_pod=options.kubeconfig is None),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "cluster-agent",
        description="Connect a cluster to its manager.",
        epilog="example:\n"
        "  cluster-agent --server https://manager.example.com --token-file token --kubeconfig cluster.yaml",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--server", metavar="URL", help="URL of the manager [$CATTLE_SERVER]")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the registration token; $CATTLE_TOKEN can contain the token instead",
    )
    parser.add_argument(
        "--ca-checksum", metavar="SHA256", help="SHA-256 of the manager's CA certificates [$CATTLE_CA_CHECKSUM]"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig of the cluster (default: the service account of the pod)",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="address that the manager can reach through the tunnel besides the API server; can be repeated",
    )
    parser.add_argument(
        "--health", metavar="HOST:PORT", help="serve /health at this address, which reports whether the tunnel is up"
    )
    return parser


def _token(file: Path | None, environment: Mapping[str, str], credentials: Path) -> Path | str:
    if file is not None:
        return file
    if environment.get("CATTLE_TOKEN"):
        return environment["CATTLE_TOKEN"]
    if (credentials / "token").exists():
        return credentials / "token"
    raise ConfigurationError(
        f"no registration token; set CATTLE_TOKEN, pass --token-file, or mount the credentials at {credentials}"
    )


def _mounted(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _checked_server(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.username:
        raise ConfigurationError(
            "--server, CATTLE_SERVER: must be the https URL of the manager, such as https://manager.example.com"
        )
    return text.rstrip("/")


def _checked_sum(text: str) -> str:
    if text and not _CHECKSUM.fullmatch(text.lower()):
        raise ConfigurationError("--ca-checksum, CATTLE_CA_CHECKSUM: must be a SHA-256 of 64 hexadecimal digits")
    return text.lower()


def _checked_address(flag: str, text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ConfigurationError(f"{flag}: {text!r} is not HOST:PORT")
    return text


def _health(text: str | None, *, in_pod: bool) -> tuple[str, int] | None:
    """In a pod, listen on all addresses, for the manifest's probe."""
    if not text:
        return ("", HEALTH_PORT) if in_pod else None
    host, _, port = _checked_address("--health", text).rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
