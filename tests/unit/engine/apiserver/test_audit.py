from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace

from herder.engine.apiserver.audit import AuditLog, AuditRecord, audit_event, audit_record
from herder.engine.apiserver.auth.access import AccessAttributes
from herder.engine.wire import Query, Request, User

WHEN = datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def record(number: int = 1, *, query: str = "", body: bytes = b"", code: int = 201) -> AuditRecord:
    return audit_record(
        Request(
            "POST",
            "/api/v1/namespaces/team/secrets",
            query=Query.parse(query),
            headers={"user-agent": "kubectl/v1.36.3", "authorization": "Bearer hunter2"},
            body=body,
            remote="192.0.2.1",
        ),
        AccessAttributes("create", "", "v1", "secrets", namespace="team"),
        User("alice", groups=("dev",)),
        audit_id=f"id-{number}",
        received=WHEN,
        completed=WHEN,
        code=code,
    )


def test_an_event_contains_user_request_and_response_code() -> None:
    assert audit_event(record()) == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": "id-1",
        "stage": "ResponseComplete",
        "requestURI": "/api/v1/namespaces/team/secrets",
        "verb": "create",
        "user": {"username": "alice", "groups": ["dev"]},
        "sourceIPs": ["192.0.2.1"],
        "userAgent": "kubectl/v1.36.3",
        "objectRef": {"resource": "secrets", "namespace": "team", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": "2026-05-01T12:00:00.123456Z",
        "stageTimestamp": "2026-05-01T12:00:00.123456Z",
    }


def test_no_secret_is_logged() -> None:
    written = json.encode(audit_event(record(query="token=hunter2&access_token=hunter2&limit=5", body=b"hunter2")))
    assert b"hunter2" not in written
    assert b"token=REDACTED&access_token=REDACTED&limit=5" in written


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/namespaces/team/secrets/hunter2", "/api/v1/namespaces/team/secrets/hunter2"),
        ("/apis", "/apis"),
        ("/version", "/version"),
        ("/v3/import/hunter2_c-m-abc.yaml", "/v3/REDACTED"),
        ("//v3//import/hunter2_c-m-abc.yaml", "/v3/REDACTED"),
        ("/hunter2" * 40, "/hunter2/REDACTED"),
        ("/" + "x" * 54, "/REDACTED"),
        ("/", "/"),
        ("/favicon.ico", "/favicon.ico"),
    ],
)
def test_urls_outside_the_api_are_truncated(path: str, expected: str) -> None:
    assert audit_event(replace(record(), path=path))["requestURI"] == expected


def test_events_are_lines_in_a_file_with_mode_0600(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "logs" / "audit.log")
    for number in range(1000):
        log.record(record(number))
    log.close()
    lines = (tmp_path / "logs" / "audit.log").read_bytes().splitlines()
    assert [json.decode(line)["auditID"] for line in lines] == [f"id-{number}" for number in range(1000)]
    assert (tmp_path / "logs" / "audit.log").stat().st_mode & 0o777 == 0o600


def test_the_file_is_rotated_and_old_files_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(10):
        log = AuditLog(path, max_bytes=1000, backups=2)
        log.record(record(number))
        log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    newest = path.read_bytes().splitlines()[-1]
    assert json.decode(newest)["auditID"] == "id-9"
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())


def test_write_errors_are_logged_and_do_not_stop_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "audit.log").mkdir()
    log = AuditLog(tmp_path / "audit.log")
    log.record(record())
    log.close()
    assert "cannot write" in caplog.text


def test_impersonation_and_failures_are_recorded() -> None:
    failed = replace(
        record(code=403),
        impersonated=User("bob"),
        status={"status": "Failure", "reason": "Forbidden", "message": "may repeat input", "code": 403},
        annotations={"authorization.k8s.io/decision": "forbid"},
    )
    event = audit_event(failed)
    assert event["impersonatedUser"] == {"username": "bob"}
    assert event["responseStatus"] == {"metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403}
    assert event["annotations"] == {"authorization.k8s.io/decision": "forbid"}


@pytest.mark.parametrize("path", ["/api/v1/namespaces/team/pods", "/api/v1/namespaces/" + "é" * 30_000 + "/pods"])
@pytest.mark.parametrize("query", ["", "a&" * 30_000, "labelSelector=" + "é" * 30_000])
def test_long_urls_are_truncated(path: str, query: str) -> None:
    """Otherwise a client without credentials could fill the files with a few thousand requests."""
    requested = Request("GET", path, query=Query.parse(query), remote="192.0.2.1")
    attributes = AccessAttributes("list", "", "v1", "pods", namespace=path.split("/")[4])
    written = audit_record(
        requested, attributes, User("alice"), audit_id="id", received=WHEN, completed=WHEN, code=403
    )  # fmt: skip
    assert len(json.encode(audit_event(written))) < 8 << 10
