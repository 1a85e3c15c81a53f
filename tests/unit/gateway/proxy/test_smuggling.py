"""Whatever headers a client sends, the cluster receives requests as that user, with the impersonator's token.

The tables hold for this proxy, and each row catches a proxy that forwards headers it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from herder.engine.meta.errors import BadRequest, Forbidden, StatusError, Unauthorized
from herder.engine.wire import Query, Request, User
from herder.gateway.proxy.impersonation.identity import (
    check_impersonated,
    downstream_user,
    impersonation,
    requested_user,
)
from herder.gateway.proxy.rewrite import Headers, Outgoing, check_connection, impersonated_request
from herder.gateway.proxy.targets import Target, asked

CLUSTER = "c-m-one"
TARGET = Target(CLUSTER, "10.43.0.1:443", "a CA")
ALICE = User("u-alice", groups=("devs", "system:authenticated"))
TOKEN = "Bearer impersonator-of-alice"

HEADERS: dict[str, dict[str, str]] = {
    "identity as hop-by-hop headers": {
        "connection": "Impersonate-User, Authorization",
        "authorization": "Bearer alice",
    },
    "in another spelling": {"connection": "close,\tIMPERSONATE-group ", "impersonate-group": "devs"},
    "a foreign user": {"impersonate-user": "admin"},
    "a foreign group": {"impersonate-group": "system:masters", "impersonate-user": "u-alice"},
    "two users": {"impersonate-user": "u-alice, admin"},
    "a foreign extra": {"impersonate-extra-scopes": "everything", "impersonate-user": "u-alice"},
    "another user's token in the audit log": {"impersonate-extra-requesttokenid": "x", "impersonate-user": "u-alice"},
    "a uid": {"impersonate-uid": "0", "impersonate-user": "u-alice"},
    "an unknown impersonation header": {"impersonate-anything": "admin"},
    "groups without a user": {"impersonate-group": "system:masters"},
    "the caller's own token": {"authorization": "Bearer alice"},
    "the caller's cookie": {"cookie": "R_SESS=token-alice"},
    "an authenticating proxy's user": {"x-remote-user": "admin", "x-remote-group": "system:masters"},
    "an authenticating proxy's extras": {"x-remote-extra-scopes": "everything"},
    "forwarding headers": {"x-forwarded-for": "127.0.0.1", "x-forwarded-uri": "/", "forwarded": "for=::1"},
    "another name of the host": {"host": "manager.example", "x-forwarded-host": "manager.example"},
    "a method in disguise": {"x-http-method-override": "DELETE"},
    "a line break": {"user-agent": "x\r\nImpersonate-User: admin"},
    "a length that is not its own": {"content-length": "999", "transfer-encoding": "chunked"},
    "underscores": {"impersonate_user": "admin"},
    "a proxy's own credentials": {"proxy-authorization": "Basic eDp5", "proxy-connection": "keep-alive"},
    "other hop-by-hop headers": {"te": "trailers", "trailer": "Impersonate-User", "keep-alive": "timeout=5"},
    "a token as a protocol": {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-protocol": "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9rZW4",
    },
}


def proxied(headers: Mapping[str, str]) -> Outgoing:
    """The request that this proxy would send for alice, who may not impersonate anyone."""
    request = Request("GET", f"/k8s/clusters/{CLUSTER}/api", Query(), headers)
    check_connection(headers)
    if wanted := requested_user(headers):
        check_impersonated(wanted)
        raise Forbidden("alice may not impersonate")
    upgrade = "websocket" if "upgrade" in headers else ""
    outgoing = impersonated_request(request, asked(request), TARGET, downstream_user(ALICE), TOKEN, upgrade=upgrade)
    outgoing.head()
    return outgoing


def proxied_naively(headers: Mapping[str, str]) -> Outgoing:
    """The request of a proxy that copies headers, adds missing identity headers, and removes hop-by-hop headers."""
    identity = [*impersonation(downstream_user(ALICE)), ("authorization", TOKEN)]
    copied = [*headers.items(), *(header for header in identity if header[0] not in headers)]
    one_hop = [name.strip().lower() for name in headers.get("connection", "").split(",")]
    return Outgoing("GET", "/api", [header for header in copied if header[0] not in one_hop])


def violations(outgoing: Outgoing) -> list[str]:
    expected: Headers = [*impersonation(downstream_user(ALICE)), ("authorization", TOKEN)]
    known = {"host", "user-agent", "connection", "upgrade", "sec-websocket-protocol"}
    found = [f"{header} is missing" for header in expected if header not in outgoing.headers]
    for header in outgoing.headers:
        name, value = header
        if (name not in known and header not in expected) or "\n" in value or "bearer" in value:
            found.append(f"{name}: {value} came through")
    if ("host", "manager.example") in outgoing.headers:
        found.append("the host is the caller's")
    return found


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_no_header_changes_the_identity(headers: dict[str, str]) -> None:
    try:
        outgoing = proxied(headers)
    except (BadRequest, Forbidden):
        return  # rejected before anything is sent
    assert violations(outgoing) == []


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_each_row_catches_a_proxy_that_copies_headers(headers: dict[str, str]) -> None:
    assert violations(proxied_naively({})) == []
    assert violations(proxied_naively(headers))


@pytest.mark.parametrize("seed", range(10))
def test_no_mixture_of_headers_changes_the_identity(seed: int) -> None:
    random = Random(seed)
    rows = list(HEADERS.values())
    names = sorted({name for row in rows for name in row} | {"accept", "if-match", "range"})
    values = sorted({value for row in rows for value in row.values()} | set(names))
    for _ in range(300):
        headers = {random.choice(names): ", ".join(random.choices(values, k=random.randrange(1, 4))) for _ in range(6)}
        try:
            outgoing = proxied(headers)
        except (BadRequest, Forbidden):
            continue
        assert identity_of(outgoing) == [*impersonation(downstream_user(ALICE)), ("authorization", TOKEN)], headers


def identity_of(outgoing: Outgoing) -> Headers:
    prefixes = ("impersonate", "authorization", "cookie", "x-remote", "x-forwarded", "forwarded", "proxy")
    return [header for header in outgoing.headers if header[0].startswith(prefixes)]


@pytest.mark.parametrize(
    ("user", "error"),
    [
        (User(""), Unauthorized),
        (User("system:anonymous", groups=("system:unauthenticated",)), Unauthorized),
        (User("system:serviceaccount:kube-system:default"), Forbidden),
        (User("system:node:worker"), Forbidden),
        (User("system:admin"), Forbidden),
    ],
)
def test_anonymous_and_system_users_have_no_downstream_identity(user: User, error: type[StatusError]) -> None:
    with pytest.raises(error):
        downstream_user(user)


def test_system_groups_are_not_forwarded() -> None:
    admin = User("u-admin", groups=("system:masters", "system:nodes", "ops", "system:authenticated"))
    assert downstream_user(admin).groups == ("ops", "system:authenticated", "system:cattle:authenticated")


def test_only_known_extras_are_forwarded() -> None:
    extra = {"username": ("alice",), "requesttokenid": ("token-x",), "scopes": ("everything",)}
    assert downstream_user(User("u-alice", extra=extra)).extra == {
        "username": ("alice",),
        "requesttokenid": ("token-x",),
    }


@pytest.mark.parametrize("name", [" admin", "admin ", "a\r\nb", "a\x00b", "tab\there"])
def test_a_name_that_would_change_in_a_header_is_rejected(name: str) -> None:
    with pytest.raises(Forbidden):
        impersonation(User(name))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/k8s/clusters/c-m-one/api/v1/pods?limit=5&continue=a%2Bb", "/api/v1/pods?limit=5&continue=a%2Bb"),
        ("/k8s/clusters/c-m-one", "/"),
        ("/k8s/clusters/c-m-one?watch=1", "/?watch=1"),
        ("/k8s/proxy/c-m-one/version", "/version"),
        ("/k8s/clusters/c-m-one/api/v1/x%2Fy", "/api/v1/x%2Fy"),
        ("/k8s/clusters/c-m-one/a;b=c/%C3%A4?q=%zz;&=&", "/a;b=c/%C3%A4?q=%zz;&=&"),
        ("/k8s/clusters/c-m-one/..a/b..", "/..a/b.."),
    ],
)
def test_a_target_is_forwarded_unchanged(target: str, path: str) -> None:
    found = asked(Request("GET", "", target=target))
    assert (found.cluster, found.target) == ("c-m-one", path)


@pytest.mark.parametrize(
    "target",
    [
        "/k8s/clusters/c-m-one/../c-m-two/api",
        "/k8s/clusters/c-m-one/api/%2e%2e/%2E./c-m-two",
        "/k8s/clusters/c-m-one/api/..%2f..%2fc-m-two",
        "/k8s/clusters/c-m-one/api/..%5c..%5cc-m-two",
        "/k8s/clusters/c-m-one/./api",
        "/k8s/clusters/../api",
        "/k8s/clusters//api",
        "/k8s/clusters/c-m-one%2fapi",
        "/k8s/clusters/c-m-one@c-m-two/api",
        "/k8s/clusters/C-M-ONE/api",
        "/k8s%2fclusters/c-m-one/api",
        "/k8s/clusters/c-m-one/a b",
        "/k8s/clusters/c-m-one/a\r\nHost: x",
        "/k8s/clusters/c-m-one/ä",
        "/v3/clusters/c-m-one",
    ],
)
def test_a_target_that_leaves_its_cluster_is_rejected(target: str) -> None:
    with pytest.raises(StatusError) as error:
        asked(Request("GET", "", target=target))
    assert error.value.code in (400, 404)


def test_a_request_without_a_raw_target_is_encoded() -> None:
    request = Request("GET", "/k8s/clusters/c-m-one/api/ä b", Query([("a", "1 2")]))
    assert asked(request).target == "/api/%C3%A4%20b?a=1+2"
