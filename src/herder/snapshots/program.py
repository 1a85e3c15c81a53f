"""The command line: one operation, one JSON object on stdout. The first line on stderr names the cause of a failure.

herder-snapshots save    --config FILE --name NAME [--metadata FILE]
herder-snapshots list    --config FILE
herder-snapshots check   --config FILE NAME [--s3] [--sha256 HASH]
herder-snapshots restore --config FILE NAME [--s3] [--sha256 HASH] [--run ID] [--accepted ID]
herder-snapshots delete  --config FILE NAME [--s3]
herder-snapshots stop    --config FILE
herder-snapshots start   --config FILE [--accepted ID]
herder-snapshots undo    --config FILE [--accepted ID]
herder-snapshots commit  --config FILE --run ID
herder-snapshots drop    --config FILE
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from herder.snapshots import operations
from herder.snapshots.config import Config, load, load_metadata
from herder.snapshots.data import Data, data_of
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError, describe
from herder.snapshots.names import check_name
from herder.snapshots.records import FAILED, Record
from herder.snapshots.restore import Reached, Restore, Workplace

EXAMPLES = """examples:
  herder-snapshots save --config FILE --name on-demand
  herder-snapshots list --config FILE
  herder-snapshots restore --config FILE NAME --s3
"""


def main(arguments: Sequence[str] | None = None, reached: Reached = lambda step: None) -> int:
    """Run one operation and return its exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminate)  # so that `finally` removes partial files
    try:
        config = load(options.config)
        result = _run(options, config, reached)
    except (SnapshotError, OSError) as error:
        return _fail(options, describe(error) if isinstance(error, OSError) else str(error))
    except Exception as error:
        code = _fail(options, f"internal error: {type(error).__name__}: {error}")
        traceback.print_exc()
        return code
    print(json.dumps(result, sort_keys=True))
    return 0


def _run(options: argparse.Namespace, config: Config, reached: Reached) -> dict[str, Any]:
    if options.operation == "save":
        described = load_metadata(options.metadata) if options.metadata else {}
        config = replace(config, metadata={**config.metadata, **described})
        return _printed(operations.save(config, data_of(config), options.name))
    if options.operation == "list":
        return _printed(operations.list_all(config))
    if options.operation == "delete":
        operations.delete(config, options.snapshot, s3=options.s3)
        return {"deleted": options.snapshot}
    data = data_of(config)
    if options.operation in _SERVER_COMMANDS:
        with Directory(config.directory).locked():
            _SERVER_COMMANDS[options.operation](options, config, data, reached)
        return {"done": options.operation}
    if options.operation == "check":
        return _printed([operations.check(config, data, options.snapshot, s3=options.s3, sha256=options.sha256)])
    name = check_name("snapshot", options.snapshot)
    with Directory(config.directory).locked():
        source = operations.source_of
        runs = {"run": options.run, "accepted": options.accepted}
        Restore(config, data, reached).run(name, lambda: source(config, options.s3), options.sha256, **runs)
    return {"restored": name}


def _stop(options: argparse.Namespace, config: Config, data: Data, reached: Reached) -> None:
    data.stop_server()


def _start(options: argparse.Namespace, config: Config, data: Data, reached: Reached) -> None:
    """A restore that was interrupted, and that is not resumed, may have replaced the data in part."""
    _undo(options, config, data, reached)
    data.start_server()


def _undo(options: argparse.Namespace, config: Config, data: Data, reached: Reached) -> None:
    Restore(config, data, reached).settle(options.accepted)


def _commit(options: argparse.Namespace, config: Config, data: Data, reached: Reached) -> None:
    Restore(config, data, reached).commit(options.run)
    if config.etcd is not None:
        data.start_server()


def _drop(options: argparse.Namespace, config: Config, data: Data, reached: Reached) -> None:
    data.drop()
    Workplace(config.directory).remove()


_SERVER_COMMANDS = {"stop": _stop, "start": _start, "undo": _undo, "commit": _commit, "drop": _drop}


def _printed(records: list[Record]) -> dict[str, Any]:
    return {"snapshots": [each.document() for each in records]}


def _fail(options: argparse.Namespace, message: str) -> int:
    line = " ".join(message.split())
    print(line, file=sys.stderr, flush=True)
    if options.operation == "save":
        print(json.dumps(_printed([Record(options.name, status=FAILED, message=line)]), sort_keys=True))
    return 1


def _terminate(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="herder-snapshots",
        description="Snapshots of a server's data.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations_ = parser.add_subparsers(dest="operation", required=True, help="what to do")
    for name, text in (
        ("save", "Take a snapshot, verify it, upload it and apply the retention"),
        ("list", "List the snapshots of this node, and those in S3"),
        ("delete", "Delete a snapshot"),
        ("check", "Check that a snapshot can be restored"),
        ("restore", "Replace the data of this server with a snapshot; resumes after an interruption"),
        ("stop", "Stop the control plane of this kubeadm server until it is started again"),
        ("start", "Start what was stopped, with the data of before an unfinished restore"),
        ("undo", "Put the data of before a restore back that is unfinished, or was not committed"),
        ("commit", "Start with the data that an operation has restored, which cannot be undone any more"),
        ("drop", "Stop this kubeadm server and remove its etcd data, so that it can join a restored cluster"),
    ):
        operation = operations_.add_parser(name, help=text, description=text)
        operation.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON file with mode 0600")
        if name == "save":
            operation.add_argument("--name", required=True, help="First part of the snapshot's name")
            metadata = "JSON file with mode 0600, whose object is stored with the snapshot"
            operation.add_argument("--metadata", type=Path, metavar="FILE", help=metadata)
        if name in ("restore", "commit"):
            help_ = "ID of the operation; its restore is kept apart until it is committed or undone"
            operation.add_argument("--run", default="", metavar="ID", required=name == "commit", help=help_)
        if name in ("restore", "start", "undo"):
            help_ = "ID of an earlier operation, whose restore is committed instead of undone"
            operation.add_argument("--accepted", default="", metavar="ID", help=help_)
        if name not in ("save", "list", *_SERVER_COMMANDS):
            operation.add_argument("snapshot", metavar="NAME", help="Name of the snapshot")
            operation.add_argument("--s3", action="store_true", help="Use the snapshot in S3, not the local file")
            if name != "delete":
                help_ = "SHA-256 that the file must have, whatever its metadata says"
                operation.add_argument("--sha256", default="", metavar="HASH", help=help_)
    return parser
