"""The S3 client against a real server, and the parts of it that need a misbehaving one."""

from __future__ import annotations

import base64
import gc
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from herder.snapshots.config import S3Config, load_s3
from herder.snapshots.errors import NotFound, SnapshotError
from herder.snapshots.files import digest_of
from herder.snapshots.s3 import answers, client, connection
from herder.snapshots.s3.answers import InvalidAnswer, page_of
from herder.snapshots.s3.client import Bucket
from herder.snapshots.s3.connection import ATTEMPTS, Connection, Request
from herder.snapshots.s3.errors import S3Error
from tests.support.cloud.s3 import BUCKET, SECRET_KEY, S3Server
from tests.support.kube import Authority, free_port


@pytest.fixture
def bucket(s3: S3Server) -> Iterator[Bucket]:
    opened = Bucket(s3.config())
    yield opened
    opened.close()


def written(path: Path, size: int) -> Path:
    path.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    return path


def test_an_object_survives_the_round_trip(bucket: Bucket, s3: S3Server, tmp_path: Path) -> None:
    source = written(tmp_path / "source", 3_000_001)
    bucket.put("farm/é +&<name>", source, digest_of(source))
    assert bucket.get("farm/é +&<name>", tmp_path / "copy") == digest_of(source)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    assert list(bucket.keys("farm/")) == [("farm/é +&<name>", 3_000_001)]
    bucket.delete("farm/é +&<name>")
    assert s3.keys() == []
    bucket.delete("farm/é +&<name>")


def test_an_empty_object_can_be_stored(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_bytes("empty", b"")
    assert bucket.get_bytes("empty", 10) == b""


def test_large_files_are_uploaded_in_parts(s3: S3Server, tmp_path: Path) -> None:
    source = written(tmp_path / "source", (5 << 20) * 2 + 17)  # S3's smallest part is 5 MiB
    bucket = Bucket(s3.config(), part=5 << 20)
    bucket.put("farm/large", source, digest_of(source))
    assert s3.file("farm/large").read_bytes() == source.read_bytes()
    bucket.close()


def test_a_failed_upload_in_parts_leaves_nothing(bucket: Bucket, s3: S3Server, tmp_path: Path) -> None:
    source = written(tmp_path / "source", (5 << 20) * 2)
    bucket._part = 5 << 20
    calls = 0
    put_part = bucket._put_part

    def fail_second(*arguments: object) -> str:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise SnapshotError("broken")
        return put_part(*arguments)  # type: ignore[arg-type]

    bucket._put_part = fail_second  # type: ignore[method-assign]
    with pytest.raises(SnapshotError, match="broken"):
        bucket.put("farm/large", source, digest_of(source))
    assert answers.uploads_of(bucket._call(_uploads())) == []
    assert s3.keys() == []


def test_uploads_that_were_killed_are_removed(bucket: Bucket) -> None:
    for key in ("farm/mine-1", "farm/other-1"):
        bucket._call(_begin(key))
    bucket.abort_uploads("farm/mine-")
    assert [key for key, _ in answers.uploads_of(bucket._call(_uploads()))] == ["farm/other-1"]
    bucket.abort_uploads("farm/")


def _uploads() -> Request:
    return Request("GET", query=(("uploads", ""),))


def _begin(key: str) -> Request:
    return Request("POST", key, (("uploads", ""),))


def test_a_listing_has_many_pages(bucket: Bucket, s3: S3Server) -> None:
    folder = s3.file("many")
    folder.mkdir()
    for number in range(2_345):
        (folder / f"n{number:05}").touch()
    assert [key for key, _ in bucket.keys("many/")] == [f"many/n{number:05}" for number in range(2_345)]


def test_a_listing_is_limited_to_one_folder(bucket: Bucket) -> None:
    for key in ("a/1", "a/.metadata/1", "a/b/2", "ab/3", "4"):
        bucket.put_bytes(key, b"")
    assert [key for key, _ in bucket.keys("a/")] == ["a/1"]
    assert [key for key, _ in bucket.keys("")] == ["4"]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secretKey": "wrong"}, r"access denied \(SignatureDoesNotMatch\); check the access key and the secret key"),
        ({"accessKey": "nobody"}, r"access denied \(XAdminUserNotFound\); check the access key and the secret key"),
        ({"bucket": "nosuch"}, r"S3 bucket nosuch at .*: the bucket does not exist; create it or change s3.bucket"),
        ({"region": "eu-north-7"}, r"in another region or at another endpoint; check s3.region"),
        ({"endpointCA": ""}, r"its certificate is signed by an unknown CA; set s3.endpointCA"),
    ],
)
def test_the_cause_is_named(s3: S3Server, changes: dict[str, str], message: str) -> None:
    with pytest.raises(S3Error, match=message) as raised:
        Bucket(s3.config(**changes)).check()
    assert SECRET_KEY not in str(raised.value)


def test_another_ca_is_unknown(s3: S3Server, tmp_path: Path) -> None:
    other = Authority(tmp_path).path.read_text()
    with pytest.raises(S3Error, match="signed by an unknown CA"):
        Bucket(s3.config(endpointCA=other)).check()
    with closing(Bucket(s3.config(endpointCA=other, skipSSLVerify=True))) as bucket:
        bucket.check()


def test_nothing_listens_at_the_endpoint(s3: S3Server) -> None:
    with pytest.raises(S3Error, match="nothing listens there"):
        Bucket(s3.config(endpoint=f"127.0.0.1:{free_port()}")).check()


def test_a_missing_object_is_reported(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="S3 object farm/none: does not exist"):
        bucket.get("farm/none", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_answer_has_a_limit(bucket: Bucket) -> None:
    bucket.put_bytes("large", b"x" * 1_000)
    with pytest.raises(SnapshotError, match="larger than 999 bytes"):
        bucket.get_bytes("large", 999)
    assert bucket.get_bytes("large", 1_000) == b"x" * 1_000


@pytest.mark.parametrize(
    "content",
    [b"", b"<", b"text", b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", b"<Other/>"],
)
def test_an_invalid_listing_is_rejected(content: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        answers.page_of(content)


def test_a_listing_without_end_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the save holds its lock for ever, and the agent of the server applies no other plan."""
    monkeypatch.setattr(client, "MAX_PAGES", 3)
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    page = b"<ListBucketResult>" + more + b"</ListBucketResult>"
    script = [answer("200 OK", page)] * 3
    with (
        scripted(tmp_path, *script) as (_, bucket, _delays),
        pytest.raises(SnapshotError, match="has more than 3 pages"),
    ):
        list(bucket.keys(""))


def test_requests_without_a_snapshot_have_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_SECONDS", 0.0)
    with scripted(tmp_path, answer("204 No Content")) as (server, bucket, _delays):
        bucket.delete("key")
        with pytest.raises(SnapshotError, match="for requests without a snapshot"):
            bucket.delete("key")
        assert len(server.requests) == 1


def test_sizes_without_end_are_no_numbers() -> None:
    page = b"<ListBucketResult><Contents><Key>a</Key><Size>" + b"9" * 5_000 + b"</Size></Contents></ListBucketResult>"
    assert page_of(page).keys == [("a", 0)]


def test_entities_are_not_expanded() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY x "xxxx"><!ENTITY y "&x;&x;">]><ListBucketResult><Key>&y;</Key></ListBucketResult>'
    with pytest.raises(InvalidAnswer, match="document type"):
        answers.page_of(bomb)


@pytest.mark.parametrize(
    "content",
    [
        b"<a>" * 500_000 + b"</a>" * 500_000,
        b"<a>" + b"<b/>" * 900_000 + b"</a>",
        b"<a " + b" ".join(b"b%d=''" % number for number in range(300_000)) + b"/>",
        b"<a b='>' " + b" ".join(b"b%d=''" % number for number in range(300_000)) + b"/>",
        b"<a>" + b"".join(b"<b%d/>" % number for number in range(300_000)) + b"</a>",
    ],
    ids=["depth", "elements", "attributes", "closed", "names"],
)
def test_a_large_answer_does_not_stop_other_threads(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scheduled backups of the manager run in a thread. The parser of the standard library took half a second, in which
    no other thread ran. The time is that of the thread: other processes do not count."""
    times: list[float] = []

    class Measured(ElementTree.XMLParser):
        def feed(self, data: str | bytes, /) -> None:
            begun = time.thread_time()
            try:
                super().feed(data)
            finally:
                times.append(time.thread_time() - begun)

    monkeypatch.setattr(ElementTree, "XMLParser", Measured)
    gc.disable()  # a collection would look at all objects of the tests
    try:
        with pytest.raises(InvalidAnswer, match="too"):
            answers.page_of(content)
    finally:
        gc.enable()
    assert max(times) < 0.05


# --- a misbehaving server ---------------------------------------------------------------------------------------------


class Scripted:
    """Answers each connection with the next bytes of a script; empty bytes reset the connection. Then it sends `drips`
    one after the other, until the client closes the connection."""

    def __init__(self, authority: Authority, script: list[bytes], names: bool, drips: bytes) -> None:
        self._drips = drips
        self.port = free_port()
        self.requests: list[bytes] = []
        self._script = script
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.issue("s3", server=names))
        self._socket = socket.create_server(("127.0.0.1", self.port))

    def serve(self) -> None:
        for answer in self._script:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            with suppress(ssl.SSLError), self._context.wrap_socket(plain, server_side=True) as connection:
                self.requests.append(_whole_request(connection))
                if answer:
                    connection.sendall(answer)
                    self._drip(connection)
                else:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def _drip(self, connection: ssl.SSLSocket) -> None:
        until = time.monotonic() + 20
        with suppress(OSError):
            while self._drips and time.monotonic() < until:
                connection.sendall(self._drips)
                time.sleep(0.05)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._socket.close()


def _whole_request(connection: ssl.SSLSocket) -> bytes:
    """Closing a connection with an unread body resets it, and the client may lose the answer."""
    request, length = b"", 0
    while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < length:
        received = connection.recv(1 << 16)
        if not received:
            break
        request += received
        if found := re.search(rb"(?i)\r\ncontent-length: ([0-9]+)\r\n", request):
            length = int(found[1])
    return request


@contextmanager
def scripted(
    tmp_path: Path, *script: bytes, names: bool = True, drips: bytes = b"", timeout: float = 5
) -> Iterator[tuple[Scripted, Bucket, list[float]]]:
    authority = Authority(tmp_path / "pki")
    server = Scripted(authority, list(script), names, drips)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    endpoint, ca = f"127.0.0.1:{server.port}", authority.path.read_text()
    config = S3Config(endpoint, BUCKET, "us-east-1", "", "key", SECRET_KEY, ca, timeout=timeout)
    delays: list[float] = []
    bucket = Bucket(config, connection=Connection(config, sleep=delays.append))
    try:
        yield server, bucket, delays
    finally:
        bucket.close()
        server.close()
        thread.join(10)


def answer(status: str, content: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {headers.pop('length', len(content))}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def test_server_errors_and_resets_are_retried_with_growing_delays(tmp_path: Path) -> None:
    script = (answer("503 Slow Down"), b"", answer("200 OK", b"done"))
    with scripted(tmp_path, *script) as (server, bucket, delays):
        assert bucket.get_bytes("key", 100) == b"done"
    assert len(server.requests) == 3
    assert 0.5 <= delays[0] < 1.0 <= delays[1] < 2.0


def test_retries_end(tmp_path: Path) -> None:
    body = b"<Error><Code>InternalError</Code><Message>try\nlater</Message></Error>"
    with scripted(tmp_path, *[answer("500 Oops", body)] * 10) as (server, bucket, _):
        with pytest.raises(S3Error, match="GET key failed: 500 InternalError try later"):
            bucket.get_bytes("key", 100)
        assert len(server.requests) == ATTEMPTS


def test_a_refusal_is_not_retried(tmp_path: Path) -> None:
    with scripted(tmp_path, answer("403 Forbidden"), answer("200 OK")) as (server, bucket, delays):
        with pytest.raises(S3Error, match="access denied"):
            bucket.get_bytes("key", 100)
        assert (len(server.requests), delays) == (1, [])


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    with (
        scripted(tmp_path, answer("200 OK"), names=False) as (server, bucket, _),
        pytest.raises(S3Error, match=r"its certificate is not valid: .*127\.0\.0\.1"),
    ):
        bucket.check()
    assert server.requests == []


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    elsewhere = answer("307 Temporary Redirect", Location="https://elsewhere.test/")
    with scripted(tmp_path, elsewhere, elsewhere) as (server, bucket, _):
        with pytest.raises(S3Error, match=r"check s3.region and s3.endpoint"):
            bucket.check()
        assert len(server.requests) == 2


def test_a_connection_that_ends_early_is_no_complete_download(tmp_path: Path) -> None:
    with (
        scripted(tmp_path, answer("200 OK", b"half", length="8")) as (_, bucket, _delays),
        pytest.raises(SnapshotError, match="the download ended after 4 of 8 bytes"),
    ):
        bucket.get("key", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_an_answer_that_is_not_http_is_reported(tmp_path: Path) -> None:
    with (
        scripted(tmp_path, b"SSH-2.0-OpenSSH\r\n\r\n") as (_, bucket, _delays),
        pytest.raises(S3Error, match="not HTTP"),
    ):
        bucket.get_bytes("key", 100)


@pytest.mark.parametrize(
    ("begin", "drips"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n", b"x"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["head", "interim", "content", "error", "chunks"],
)
def test_an_answer_that_arrives_byte_by_byte_has_a_time_limit(
    begin: bytes, drips: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte ends a wait of the socket. A save that waits holds its lock: no other plan is applied, and no other
    backup of the manager is made."""
    monkeypatch.setattr(connection, "SLOWEST", 100 << 20)
    with scripted(tmp_path, begin, drips=drips, timeout=0.5) as (_, bucket, _delays):
        begun = time.monotonic()
        with pytest.raises(S3Error, match="no answer in time"):
            bucket.get_bytes("key", 100_000)
        assert time.monotonic() - begun < 5


def test_the_secret_key_is_not_sent(tmp_path: Path) -> None:
    with scripted(tmp_path, answer("200 OK")) as (server, bucket, _):
        bucket.put_bytes("key", b"content")
    head = server.requests[0]
    assert SECRET_KEY.encode() not in head
    assert b"Authorization: AWS4-HMAC-SHA256 Credential=key/" in head


def test_proxies_of_the_environment_are_not_used(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with closing(Bucket(s3.config())) as bucket:
        bucket.check()


# --- configuration ----------------------------------------------------------------------------------------------------


def test_the_ca_can_be_in_base64(s3: S3Server, tmp_path: Path) -> None:
    encoded = base64.b64encode(s3.authority.path.read_bytes()).decode()
    file = tmp_path / "s3.json"
    file.write_text(json.dumps(s3.settings(endpointCA=encoded, endpoint=f"https://{s3.endpoint}/")))
    file.chmod(0o600)
    with closing(Bucket(load_s3(file))) as bucket:
        bucket.check()


def test_the_configuration_hides_its_secret(s3: S3Server) -> None:
    assert SECRET_KEY not in repr(s3.config())
