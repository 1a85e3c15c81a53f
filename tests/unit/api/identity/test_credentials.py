"""Where a token is found in a request, and when a cookie is accepted."""

from __future__ import annotations

import base64

import pytest

from herder.api.identity.authn.credentials import Credential, credential_of

KEY = "d" * 54
TOKEN = f"token-abc:{KEY}"


def basic(text: str, *, urlsafe: bool = False) -> str:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    return f"Basic {encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": f"Bearer {TOKEN}"}, Credential("token-abc", KEY)),
        ({"authorization": f"bearer   {TOKEN} "}, Credential("token-abc", KEY)),
        ({"authorization": f"Bearer ext/{TOKEN}"}, Credential("token-abc", KEY, ext=True)),
        ({"authorization": basic(TOKEN)}, Credential("token-abc", KEY)),
        ({"authorization": basic("token-a:~~~???", urlsafe=True)}, Credential("token-a", "~~~???")),
        ({"authorization": basic("token-a:~~~???")}, Credential("token-a", "~~~???")),
        ({"cookie": f"other=1; R_SESS={TOKEN}; more=2"}, Credential("token-abc", KEY)),
        ({}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer no-colon"}, None),
        ({"authorization": "Bearer two:colons:here"}, None),
        ({"authorization": "Bearer name:"}, None),
        ({"authorization": "Bearer :key"}, None),
        ({"authorization": "Bearer ../secrets/x:key"}, None),
        ({"authorization": "Bearer UPPER:key"}, None),
        ({"authorization": f"Bearer ext/ext/{TOKEN}"}, None),
        ({"authorization": "Bearer name:" + "k" * 2000}, None),
        ({"authorization": "Basic !!!"}, None),
        ({"authorization": "Digest x:y"}, None),
        ({"authorization": "Bearer eyJ.eyJ.sig"}, None),
    ],
)
def test_a_token_is_found_wherever_clients_put_it(headers: dict[str, str], expected: Credential | None) -> None:
    assert credential_of("GET", headers) == expected


def test_a_cookie_does_not_replace_an_invalid_header() -> None:
    assert credential_of("GET", {"authorization": "Bearer nonsense", "cookie": f"R_SESS={TOKEN}"}) is None


def test_repr_does_not_show_the_key() -> None:
    assert KEY not in repr(credential_of("GET", {"authorization": f"Bearer {TOKEN}"}))


@pytest.mark.parametrize(
    ("method", "extra", "accepted"),
    [
        ("GET", {}, True),
        ("GET", {"origin": "https://evil.example"}, False),
        ("GET", {"upgrade": "websocket", "origin": "https://evil.example"}, False),
        ("GET", {"upgrade": "websocket", "origin": "https://manager:8443"}, True),
        ("GET", {"upgrade": "websocket", "origin": "null"}, False),
        ("GET", {"upgrade": "websocket", "sec-fetch-site": "cross-site"}, False),
        ("POST", {"origin": "https://manager:8443"}, True),
        ("POST", {"origin": "https://manager"}, False),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {}, True),  # not a browser: browsers send the origin
        ("DELETE", {"origin": "https://evil.example"}, False),
        ("GET", {"origin": "http://["}, False),
    ],
)
def test_a_cookie_is_accepted_from_the_same_origin_only(method: str, extra: dict[str, str], accepted: bool) -> None:
    """CVE-2019-13209: another site's page opened a WebSocket with the user's cookie."""
    headers = {"host": "manager:8443", "cookie": f"R_SESS={TOKEN}", **extra}
    assert (credential_of(method, headers) is not None) == accepted
    header = {**headers, "authorization": f"Bearer {TOKEN}"}
    assert credential_of(method, header) is not None, "an explicit header is always accepted"
