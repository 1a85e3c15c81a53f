"""Entry point: `python -m herder.embedded server|node`, one machine of an embedded cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TextIO

from herder.embedded.configuration import CONFIG_DIR, Configuration, ConfigurationError, read

UNUSABLE = 78  # EX_CONFIG: a restart does not help until the configuration changes


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        configuration = read(options.config_dir, version=options.version)
        _log_to(sys.stderr, configuration.log_level)
        return asyncio.run(_until_signalled(_work(options.role, configuration, options.config_dir)))
    except ConfigurationError as problem:
        print(f"herder-embedded: {problem}", file=sys.stderr)
        return UNUSABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "herder-embedded",
        description="Run a machine of an embedded cluster, a Kubernetes distribution without containers.",
        epilog="examples:\n"
        "  herder-embedded server\n"
        "  herder-embedded node --config-dir /etc/rancher/herder --version v1.36.3+herder1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=("server", "node"), help="role of the machine: control plane or worker")
    parser.add_argument(
        "--config-dir",
        type=Path,
        metavar="DIR",
        default=CONFIG_DIR,
        help="directory with config.yaml and config.yaml.d (default: %(default)s)",
    )
    parser.add_argument("--version", default="", help="kubelet version that the Node reports")
    return parser


def _log_to(stream: TextIO, level: str) -> None:
    class WithFields(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            fields = getattr(record, "fields", {})
            return super().format(record) + "".join(f" {key}={value}" for key, value in fields.items())

    handler = logging.StreamHandler(stream)
    handler.setFormatter(WithFields("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _work(role: str, configuration: Configuration, config_dir: Path) -> Coroutine[None, None, None]:
    if role == "server":
        from herder.embedded.server import serve

        return serve(configuration, config_dir)
    from herder.embedded.worker import join

    return join(configuration)


async def _until_signalled(work: Coroutine[None, None, None]) -> int:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    except BaseExceptionGroup as group:
        problems = group.subgroup(ConfigurationError)
        if problems is not None:
            raise problems.exceptions[0] from None
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
