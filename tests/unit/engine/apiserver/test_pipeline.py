from __future__ import annotations

from pathlib import Path

import pytest

from herder.engine.wire import Response, User
from tests.unit.engine.apiserver.api import Api, config_map, start
from tests.unit.engine.apiserver.commit_gate import CommitGate, sqlite_error


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/api/v1/namespaces/default/unheards", 404, "NotFound"),
        ("GET", "/api/v1/configmaps/a", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/nodes", 404, "NotFound"),
        ("GET", "/api/v1//namespaces/default/configmaps", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/configmaps/a/status", 404, "NotFound"),
        ("POST", "/api/v1/configmaps", 405, "MethodNotAllowed"),
        ("PUT", "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/namespaces/default/configmaps/a", 405, "MethodNotAllowed"),
        ("GET", "/apis/apps/v9/deployments", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/configmaps/..", 400, "BadRequest"),
        ("DELETE", "/api/v1/configmaps", 405, "MethodNotAllowed"),
        ("OPTIONS", "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed"),
        ("HEAD", "/api/v1/namespaces/default/configmaps", 405, "MethodNotAllowed"),
    ],
)
async def test_unknown_requests_are_rejected(running: Api, method: str, path: str, status: int, reason: str) -> None:
    body = {} if method in ("POST", "PUT") else None
    rejected = await running.ask(method, path, body)
    assert (rejected.status, rejected.reason) == (status, reason)


@pytest.mark.parametrize("path", ["/apis/unheard", "/apis/unheard/v1/things", "/unheard"])
async def test_unserved_paths_get_a_plain_404(running: Api, path: str) -> None:
    missing = await running.get(path)
    assert (missing.status, missing.body) == (404, b"404 page not found\n")


async def test_health_is_one_word_or_one_line_per_check(running: Api) -> None:
    for endpoint in ("healthz", "livez", "readyz"):
        assert (await running.get(f"/{endpoint}")).body == b"ok"
    verbose = (await running.get("/readyz?verbose")).body.decode()
    assert "[+]ping ok\n" in verbose
    assert verbose.endswith("readyz check passed\n")
    assert (await running.get("/readyz/ping")).body == b"ok"
    assert (await running.get("/readyz/unheard")).status == 404


async def test_a_failed_health_check_is_reported(running: Api) -> None:
    running.server.checks["sick"] = lambda: False
    try:
        sick = await running.get("/livez")
        assert sick.status == 500
        assert b"[-]sick failed: reason withheld" in sick.body
        assert (await running.get("/livez?exclude=sick")).status == 200
    finally:
        del running.server.checks["sick"]


async def test_health_reports_whether_the_store_commits(tmp_path: Path) -> None:
    server, clock = await start(tmp_path)
    api, gate = Api(server, clock), CommitGate(server.deps.store)
    gate.error = sqlite_error("SQLITE_FULL")
    rejected = await api.post("/api/v1/namespaces/default/configmaps", config_map("a"))
    assert (rejected.status, rejected.headers["retry-after"]) == (503, "1")
    for endpoint in ("healthz", "livez", "readyz"):
        sick = await api.get(f"/{endpoint}")
        assert sick.status == 500
        assert b"[-]store failed" in sick.body
        assert (await api.get(f"/{endpoint}/store")).status == 500
    gate.error = None
    assert (await api.post("/api/v1/namespaces/default/configmaps", config_map("a"))).status == 201
    assert (await api.get("/readyz")).status == 200
    await server.stop()


async def test_every_response_has_an_audit_id(running: Api) -> None:
    first, second = await running.get("/version"), await running.get("/version")
    assert first.headers["audit-id"] != second.headers["audit-id"]


async def test_forbidden_requests_name_the_missing_permission(api: Api) -> None:
    rejected = await api.as_user("jane").get(api.path("configmaps"))
    assert (rejected.status, rejected.reason) == (403, "Forbidden")
    assert rejected.message == (
        'configmaps is forbidden: User "jane" cannot list resource "configmaps" in API group "" '
        f'in the namespace "{api.namespace}"'
    )


async def test_creating_by_apply_requires_the_create_permission(api: Api) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch", "get"]}]
    group = "rbac.authorization.k8s.io"
    await api.post(api.path("roles", group=group), {"metadata": {"name": "r"}, "rules": rules})
    await api.post(
        api.path("rolebindings", group=group),
        {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}],
        },
    )
    jane = api.as_user("jane")
    url = f"{api.path('configmaps', 'a')}?fieldManager=m"
    rejected = await jane.patch(url, config_map("a"), "application/apply-patch+yaml")
    assert (rejected.status, rejected.reason) == (403, "Forbidden")
    await api.post(api.path("configmaps"), config_map("a"))
    assert (await jane.patch(url, config_map("a", x="1"), "application/apply-patch+yaml")).status == 200


async def test_an_unexpected_failure_returns_a_status_without_details(
    running: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: object, user: User) -> Response:
        raise RuntimeError("the secret is 42")

    running.server.add_route("/broken", broken)
    failed = await running.get("/broken")
    assert (failed.status, failed.reason) == (500, "InternalError")
    assert "42" not in failed.message
    assert "GET /broken failed" in caplog.text


async def test_registered_routes_are_served_below_a_prefix(running: Api) -> None:
    async def echo(request: object, user: User) -> Response:
        return Response(200, {"content-type": "text/plain"}, user.name.encode())

    running.server.add_route("/own/", echo)
    assert (await running.get("/own/anything/below")).body == b"admin"
    assert (await running.as_user("jane").get("/own/x")).status == 403
