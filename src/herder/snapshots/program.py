"""The command line: one operation, one JSON object on stdout. The first line on stderr names the cause of a failure.

herder-snapshots save    --config FILE --name NAME
herder-snapshots list    --config FILE
herder-snapshots check   --config FILE NAME [--s3]
herder-snapshots restore --config FILE NAME [--s3]
herder-snapshots delete  --config FILE NAME [--s3]
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from herder.snapshots import operations
from herder.snapshots.config import Config, load
from herder.snapshots.data import data_of
from herder.snapshots.directory import Directory
from herder.snapshots.errors import SnapshotError, describe
from herder.snapshots.names import check_name
from herder.snapshots.records import FAILED, Record
from herder.snapshots.restore import Reached, Restore

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
        return _printed(operations.save(config, data_of(config), options.name))
    if options.operation == "list":
        return _printed(operations.list_all(config))
    if options.operation == "delete":
        operations.delete(config, options.snapshot, s3=options.s3)
        return {"deleted": options.snapshot}
    data = data_of(config)
    if options.operation == "check":
        return _printed([operations.check(config, data, options.snapshot, s3=options.s3)])
    name = check_name("snapshot", options.snapshot)
    with Directory(config.directory).locked():
        Restore(config, data, reached).run(name, lambda: operations.source_of(config, options.s3))
    return {"restored": name}


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
    ):
        operation = operations_.add_parser(name, help=text, description=text)
        operation.add_argument("--config", type=Path, required=True, metavar="FILE", help="JSON file with mode 0600")
        if name == "save":
            operation.add_argument("--name", required=True, help="First part of the snapshot's name")
        elif name != "list":
            operation.add_argument("snapshot", metavar="NAME", help="Name of the snapshot")
            operation.add_argument("--s3", action="store_true", help="Use the snapshot in S3, not the local file")
    return parser
