"""Objects of one S3 bucket: check, put, get, list and delete. Files are streamed in both directions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from herder.snapshots.config import S3Config
from herder.snapshots.errors import NotFound, SnapshotError
from herder.snapshots.files import Digest, digest_of, room, writing
from herder.snapshots.s3.answers import Answer, InvalidAnswer, page_of, uploads_of
from herder.snapshots.s3.connection import PIECE, Answered, Body, Connection, Request
from herder.snapshots.s3.errors import S3Error

PART = 64 << 20
MAX_PARTS = 10_000
MAX_KEYS = 100_000  # of a listing
MAX_PAGES = 1_000


class Bucket:
    def __init__(self, config: S3Config, *, connection: Connection | None = None, part: int = PART) -> None:
        self.config = config
        self._connection = connection or Connection(config)
        self._part = part

    def close(self) -> None:
        self._connection.close()

    def check(self) -> None:
        """Raise the reason why the bucket cannot be used."""
        try:
            self._call(Request("HEAD"))
        except S3Error as error:
            if not error.status or error.status >= 500:
                raise
            # The answer to a HEAD request has no body; that of this one names the cause. Even the status is no help:
            # some servers answer 404 to an unknown access key.
            self._call(Request("GET", query=(("list-type", "2"), ("max-keys", "1"))))
            raise

    def put(self, key: str, path: Path, digest: Digest) -> None:
        """Upload a file whose size and hash are known. The object appears complete or not at all."""
        if digest.size > self._part:
            self._put_parts(key, path, digest.size)
        else:
            body = Body(digest.sha256, digest.size, file=path)
            self._connection.exchange(Request("PUT", key, body=body), Answered.read, transfers=True)

    def put_bytes(self, key: str, content: bytes) -> None:
        self._call(Request("PUT", key, body=Body(hashlib.sha256(content).hexdigest(), len(content), content)))

    def get(self, key: str, path: Path) -> Digest:
        """Download an object to a new file with mode 0600."""

        def receive(answer: Answered) -> Digest:
            path.unlink(missing_ok=True)
            if answer.length > (left := room(path.parent)):
                raise SnapshotError(
                    f"S3 object {key}: has {answer.length} bytes, and the disk is full after {left} more; "
                    f"free some space in {path.parent}, or use another snapshot"
                )
            hashed, size = hashlib.sha256(), 0
            with writing(path) as file:
                for piece in answer.pieces():
                    file.write(piece)
                    hashed.update(piece)
                    size += len(piece)
                    if size > answer.length:
                        break
                if size != answer.length:
                    raise SnapshotError(f"S3 object {key}: the download ended after {size} of {answer.length} bytes")
            return Digest(size, hashed.hexdigest())

        try:
            return self._connection.exchange(Request("GET", key), receive, transfers=True)
        except S3Error as error:
            raise _missing(error, key) from None

    def get_bytes(self, key: str, limit: int) -> bytes:
        try:
            return self._connection.exchange(Request("GET", key), lambda answer: answer.read(limit))
        except S3Error as error:
            raise _missing(error, key) from None

    def keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield keys and sizes directly below a prefix that is empty or ends with a slash."""
        token, count = "", 0
        for _ in range(MAX_PAGES):
            query = [("list-type", "2"), ("delimiter", "/"), ("prefix", prefix)]
            if token:
                query.append(("continuation-token", token))
            try:
                page = page_of(self._call(Request("GET", query=query)))
            except InvalidAnswer as error:
                raise SnapshotError(f"S3 bucket {self.config.bucket}: the listing is not valid: {error}") from None
            yield from page.keys
            count += len(page.keys)
            if count > MAX_KEYS:
                raise SnapshotError(f"S3 bucket {self.config.bucket}: has more than {MAX_KEYS} objects in {prefix!r}")
            if not page.next_token:
                return
            token = page.next_token
        raise SnapshotError(
            f"S3 bucket {self.config.bucket}: the listing of {prefix!r} has more than {MAX_PAGES} pages"
        )

    def delete(self, key: str) -> None:
        """Delete an object. It is no error if it does not exist."""
        try:
            self._call(Request("DELETE", key))
        except S3Error as error:
            if error.status != 404:
                raise

    def abort_uploads(self, prefix: str) -> None:
        """Remove the parts of uploads that were killed. Servers without multipart uploads have none."""
        try:
            uploads = uploads_of(self._call(Request("GET", query=(("uploads", ""), ("prefix", prefix)))))
            for key, upload in uploads:
                if key.startswith(prefix):
                    self._call(Request("DELETE", key, (("uploadId", upload),)))
        except (S3Error, InvalidAnswer):
            return

    # --- multipart uploads ------------------------------------------------------------------------------------------

    def _put_parts(self, key: str, path: Path, size: int) -> None:
        part = max(self._part, -(-size // MAX_PARTS))
        upload = self._answer(Request("POST", key, (("uploads", ""),)), "InitiateMultipartUploadResult").text(
            "UploadId"
        )
        try:
            tags = [
                self._put_part(key, path, upload, number, offset, min(part, size - offset))
                for number, offset in enumerate(range(0, size, part), 1)
            ]
            self._complete(key, upload, tags)
        except BaseException:
            self._abort(key, upload)
            raise

    def _put_part(self, key: str, path: Path, upload: str, number: int, offset: int, size: int) -> str:
        digest = digest_of(path, offset, size)
        query = (("partNumber", str(number)), ("uploadId", upload))
        body = Body(digest.sha256, size, file=path, offset=offset)
        return self._connection.exchange(Request("PUT", key, query, body), _tag, transfers=True)

    def _complete(self, key: str, upload: str, tags: list[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{_escaped(tag)}</ETag></Part>"
            for number, tag in enumerate(tags, 1)
        )
        content = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        body = Body(hashlib.sha256(content).hexdigest(), len(content), content)
        # S3 may report an error with status 200, after it has sent the head of its answer.
        self._answer(Request("POST", key, (("uploadId", upload),), body), "CompleteMultipartUploadResult")

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._call(Request("DELETE", key, (("uploadId", upload),)))
        except SnapshotError:
            return  # the first error is the one to report; the next save tries again

    def _answer(self, request: Request, name: str) -> Answer:
        try:
            answer = Answer(self._call(request))
        except InvalidAnswer as error:
            raise SnapshotError(f"S3 object {request.key}: the answer is not valid: {error}") from None
        if answer.name != name:
            raise SnapshotError(
                f"S3 object {request.key}: the upload failed: {answer.text('Code')[:80] or answer.name}"
            )
        return answer

    def _call(self, request: Request) -> bytes:
        return self._connection.exchange(request, Answered.read)


def _missing(error: S3Error, key: str) -> SnapshotError:
    if error.code == "NoSuchKey" or (error.status == 404 and not error.code):
        return NotFound(f"S3 object {key}: does not exist")
    return error


def _tag(answer: Answered) -> str:
    answer.read(PIECE)
    tag = answer.header("ETag")
    if not tag:
        raise SnapshotError("S3: the answer to the upload of a part has no ETag")
    return tag


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
