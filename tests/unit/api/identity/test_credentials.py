"""Where a token is looked for in a request, and when a cookie counts."""

from __future__ import annotations

import base64

import pytest

from herder.api.identity.authn.credentials import Credential, credential_of

KEY = "d" * 54
SHOWN = f"token-abc:{KEY}"


def basic(text: str, *, urlsafe: bool = False) -> str:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    return f"Basic {encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"authorization": f"Bearer {SHOWN}"}, Credential("token-abc", KEY)),
        ({"authorization": f"bearer   {SHOWN} "}, Credential("token-abc", KEY)),
        ({"authorization": f"Bearer ext/{SHOWN}"}, Credential("token-abc", KEY, ext=True)),
        ({"authorization": basic(SHOWN)}, Credential("token-abc", KEY)),
        ({"authorization": basic("token-a:~~~???", urlsafe=True)}, Credential("token-a", "~~~???")),
        ({"authorization": basic("token-a:~~~???")}, Credential("token-a", "~~~???")),
        ({"cookie": f"other=1; R_SESS={SHOWN}; more=2"}, Credential("token-abc", KEY)),
        ({}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer no-colon"}, None),
        ({"authorization": "Bearer two:colons:here"}, None),
        ({"authorization": "Bearer name:"}, None),
        ({"authorization": "Bearer :key"}, None),
        ({"authorization": "Bearer ../secrets/x:key"}, None),
        ({"authorization": "Bearer UPPER:key"}, None),
        ({"authorization": f"Bearer ext/ext/{SHOWN}"}, None),
        ({"authorization": "Bearer name:" + "k" * 2000}, None),
        ({"authorization": "Basic !!!"}, None),
        ({"authorization": "Digest x:y"}, None),
        ({"authorization": "Bearer eyJ.eyJ.sig"}, None),
    ],
)
def test_a_token_is_found_wherever_clients_put_it(headers: dict[str, str], found: Credential | None) -> None:
    assert credential_of("GET", headers) == found


def test_a_wrong_header_is_not_made_good_by_a_cookie() -> None:
    assert credential_of("GET", {"authorization": "Bearer nonsense", "cookie": f"R_SESS={SHOWN}"}) is None


def test_a_key_is_not_in_what_is_printed() -> None:
    assert KEY not in repr(credential_of("GET", {"authorization": f"Bearer {SHOWN}"}))


@pytest.mark.parametrize(
    ("method", "more", "counts"),
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
        ("POST", {}, True),  # no browser: those say where they come from
        ("DELETE", {"origin": "https://evil.example"}, False),
        ("GET", {"origin": "http://["}, False),
    ],
)
def test_a_cookie_counts_for_our_own_pages_only(method: str, more: dict[str, str], counts: bool) -> None:
    """CVE-2019-13209: another site's page opened a WebSocket with the user's cookie."""
    headers = {"host": "manager:8443", "cookie": f"R_SESS={SHOWN}", **more}
    assert (credential_of(method, headers) is not None) == counts
    header = {**headers, "authorization": f"Bearer {SHOWN}"}
    assert credential_of(method, header) is not None, "what a program sends on purpose always counts"
