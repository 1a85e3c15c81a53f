"""Secrets must never leak: scans what servers write (objects of every revision, logs and audit lines) for secrets.

Secrets are recognized by their form, not from a list, so that those of every process and test are found: canaries,
which tests use as passwords and keys, and generated secrets, which are private keys and tokens.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from herder.api.management.names import TOKEN_ALPHABET, TOKEN_LENGTH
from herder.engine.store.database import Commit, Database
from herder.engine.store.directory import DATABASE
from herder.engine.store.records import Key

_MARK = "herder-canary-"
_LEAKED = "secret leaked"
_PLACES_SHOWN = 10
_ENABLED = "PYTEST_VERSION" in os.environ  # benchmarks start the same servers with far more data

SECRETS = "secrets"
"""The only resource that may hold secrets."""


def canary(what: str) -> str:
    """A secret for tests, always the same for one name (lower-case words). It is recognized wherever it leaks."""
    return _MARK + what.replace(" ", "-")


# --- patterns ---------------------------------------------------------------------------------------------------------


def _in_base64(text: str) -> list[bytes]:
    """How the text looks inside longer encoded data, at each of the three possible offsets."""
    found = []
    for shift in range(3):
        encoded = base64.b64encode(bytes(shift) + text.encode() + b"??")
        found.append(encoded[-(-shift * 8 // 6) : (shift + len(text)) * 8 // 6])
    return found


@dataclass(frozen=True)
class Form:
    name: str
    pattern: re.Pattern[bytes]
    markers: Sequence[bytes] = (b"",)  # every such secret contains one; far quicker to find than the pattern
    min_distinct_bytes: int = 1  # bytes; random values have many, unlike the filling of a test

    def found_in(self, text: bytes) -> Iterator[re.Match[bytes]]:
        if any(marker in text for marker in self.markers):
            for match in self.pattern.finditer(text):
                if len(set(match[0])) >= self.min_distinct_bytes:
                    yield match


def _literal_form(name: str, *markers: bytes) -> Form:
    return Form(name, re.compile(b"|".join(re.escape(marker) for marker in markers)), markers)


_PRIVATE_KEY = "PRIVATE KEY-----"
_TOKEN = re.compile(rb"[%s]{%d}" % (TOKEN_ALPHABET.encode(), TOKEN_LENGTH))
_SERVICE_ACCOUNT_TOKEN = re.compile(rb"eyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]{16,}")
_FORMS = (
    Form("the canary ", re.compile(rb"(?<=%s)[a-z0-9-]+" % _MARK.encode()), (_MARK.encode(),)),
    _literal_form("a canary in base64", *_in_base64(_MARK)),
    _literal_form("a private key", _PRIVATE_KEY.encode()),
    _literal_form("a private key in base64", *_in_base64(_PRIVATE_KEY)),
    Form("a token", _TOKEN, min_distinct_bytes=12),
    Form("a service account's token", _SERVICE_ACCOUNT_TOKEN, (b".eyJ",)),
    _literal_form("a leak found by another process", _LEAKED.encode()),
)


def secrets_in(text: bytes) -> list[str]:
    """Which secrets the text contains: canaries by their own name, others by that of their form; never by value."""
    found = [
        f"{form.name}{match[0].decode()}" if form.name.endswith(" ") else form.name
        for form in _FORMS
        for match in form.found_in(text)
    ]
    return list(dict.fromkeys(found))


# --- scans ------------------------------------------------------------------------------------------------------------


def in_object(key: Key, value: bytes) -> Iterator[str]:
    """One sentence per secret in an object; `value` is the object as it is stored."""
    if key.resource == SECRETS or not secrets_in(value):
        return
    for path, text in _texts(json.loads(value), ""):
        for secret in secrets_in(text.encode(errors="replace")):
            yield f"{secret} in {key}, {path}"


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every string and every key of a JSON value, with its path."""
    if isinstance(value, dict):
        for key, each in value.items():
            hidden = "(a key)" if secrets_in(key.encode(errors="replace")) else key
            yield f"{path}.{hidden}", key
            yield from _texts(each, f"{path}.{hidden}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _texts(each, f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value


def in_store(directory: Path) -> Iterator[str]:
    """Secrets in every revision of every object that a server has stored in this directory."""
    path = directory / DATABASE
    if not path.exists():
        return
    # After a clean shutdown there is no write-ahead log, and none must be created; after a crash it must be read.
    mode = "mode=ro" if path.with_name(f"{DATABASE}-wal").exists() else "immutable=1"
    connection = sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True)
    try:
        rows = connection.execute(
            "SELECT resource, namespace, name, value FROM revisions JOIN objects USING (object_id) WHERE resource != ?",
            (SECRETS,),
        )
        for resource, namespace, name, value in rows:
            yield from in_object(Key(resource, namespace, name), value)
    finally:
        connection.close()


def in_etcd(url: str) -> Iterator[str]:
    """Secrets in every object that kube-apiserver stored in etcd; built-in kinds are not JSON, so no field is named."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        wanted = {"key": _base64("/registry/"), "range_end": _base64("/registry0")}
        connection.request("POST", "/v3/kv/range", json.dumps(wanted))
        answer = connection.getresponse()
        assert answer.status == 200, f"etcd: {answer.status}"
        found = json.load(answer).get("kvs", [])
    finally:
        connection.close()
    for entry in found:
        key = base64.b64decode(entry["key"]).decode()
        if not key.startswith(f"/registry/{SECRETS}/"):
            yield from (f"{secret} in {key}" for secret in secrets_in(base64.b64decode(entry["value"])))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def in_logs(directory: Path) -> Iterator[str]:
    """Secrets in the logs of a process and of what it runs: the audit log, logs of pods and of machines."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder, name) for name in names if name == "log" or ".log" in name):
            if path.is_file() and not path.is_symlink():
                yield from _in_log(path, str(path.relative_to(directory)))


def _in_log(path: Path, name: str) -> Iterator[str]:
    content = path.read_bytes()
    if secrets_in(content):
        for number, line in enumerate(content.splitlines(), 1):
            yield from (f"{secret} in {name}, line {number}" for secret in secrets_in(line))


# --- checks -----------------------------------------------------------------------------------------------------------


def assert_no_secrets(*places: Iterator[str]) -> None:
    """Raise an error if any of these scans finds a secret."""
    if _ENABLED and (found := [sentence for place in places for sentence in place]):
        raise AssertionError(_report(found))


def _report(found: Sequence[str]) -> str:
    different = list(dict.fromkeys(found))
    listed = different[:_PLACES_SHOWN]
    more = [f"and in {len(different) - len(listed)} more places"] if len(different) > len(listed) else []
    return "\n  ".join([f"{_LEAKED}:", *listed, *more])


class InProcessScanner:
    """Scans what servers inside the tests' own process store, and what tests print and log."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def watch_stores(self) -> None:
        append = Database.append

        def watched(database: Database, commits: Sequence[Commit]) -> int:
            for record in (event.record for commit in commits for event in commit.events):
                self._found += in_object(record.key, record.value)
            return append(database, commits)

        Database.append = watched  # type: ignore[method-assign, assignment]

    def drain(self) -> list[str]:
        found, self._found = self._found, []
        return found

    def check_report(self, report: pytest.TestReport, *, allowed: Sequence[str] = ()) -> None:
        """Fail a test that leaked a secret; resources in `allowed` may hold one."""
        found = [sentence for sentence in self.drain() if not any(f" in {each} " in sentence for each in allowed)]
        for name, content in report.sections:
            found += [f"{secret} in {name}" for secret in secrets_in(content.encode(errors="replace"))]
        if found and not report.failed:
            report.outcome = "failed"
            report.longrepr = _report(found)


SCANNER = InProcessScanner()
