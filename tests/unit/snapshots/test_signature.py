"""Signatures of the examples in the S3 documentation, "Signature Calculations for the Authorization Header"."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import pytest

from herder.snapshots.s3.signature import EMPTY, Credentials, Unsigned, authorization, encoded_path, encoded_query

AT = datetime(2013, 5, 24, tzinfo=UTC)
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
CONTENT = hashlib.sha256(b"Welcome to Amazon S3.").hexdigest()


def headers(sha256: str = EMPTY, **more: str) -> dict[str, str]:
    given = {name.replace("_", "-"): value for name, value in more.items()}
    return {"Host": HOST, "x-amz-content-sha256": sha256, "x-amz-date": "20130524T000000Z", **given}


@pytest.mark.parametrize(
    ("request_", "signature"),
    [
        (
            Unsigned("GET", "/test.txt", (), headers(Range="bytes=0-9"), EMPTY),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            Unsigned(
                "PUT",
                encoded_path("test$file.text"),
                (),
                headers(CONTENT, Date="Fri, 24 May 2013 00:00:00 GMT", x_amz_storage_class="REDUCED_REDUNDANCY"),
                CONTENT,
            ),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            Unsigned("GET", "/", (("lifecycle", ""),), headers(), EMPTY),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            Unsigned("GET", "/", (("prefix", "J"), ("max-keys", "2")), headers(), EMPTY),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
    ids=["get", "put", "lifecycle", "list"],
)
def test_the_signature_is_that_of_the_documentation(request_: Unsigned, signature: str) -> None:
    assert authorization(request_, EXAMPLE, AT).endswith(f"Signature={signature}")


def test_the_header_names_scope_and_signed_headers() -> None:
    header = authorization(Unsigned("GET", "/", (), headers(), EMPTY), EXAMPLE, AT)
    assert header.startswith(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature="
    )


def test_paths_and_queries_are_encoded_once() -> None:
    assert encoded_path("bucket", "a b/c+d/é~") == "/bucket/a%20b/c%2Bd/%C3%A9~"
    assert encoded_query((("prefix", "a/b c"), ("delimiter", "/"))) == "delimiter=%2F&prefix=a%2Fb%20c"


def test_credentials_hide_the_secret_key() -> None:
    assert EXAMPLE.secret_key not in repr(EXAMPLE)
