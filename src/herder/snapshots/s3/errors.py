"""Causes of failed S3 requests, in words for users."""

from __future__ import annotations

import socket
import ssl

from herder.snapshots.config import S3Config
from herder.snapshots.errors import SnapshotError, describe

_DENIED = {
    *("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"),
    "XAdminUserNotFound",  # an unknown access key of versitygw
}
_ELSEWHERE = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}
_UNKNOWN_AUTHORITY = (7, 18, 19, 20, 21)  # OpenSSL error codes for unknown issuers; 7: another CA of the same name


class S3Error(SnapshotError):
    """The server refused a request."""

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def refusal(config: S3Config, what: str, status: int, code: str, message: str) -> S3Error:
    """`code` and `message` are those of the answer; a HEAD request has none."""
    bucket = f"S3 bucket {config.bucket} at {config.endpoint}"
    if code == "NoSuchBucket" or (status == 404 and not code):
        text = f"{bucket}: the bucket does not exist; create it or change s3.bucket"
    elif code == "RequestTimeTooSkewed":
        text = f"{bucket}: the clock of this node differs too much from the clock of the server; set the clock"
    elif code in _ELSEWHERE or 300 <= status < 400:
        text = f"{bucket}: the bucket is in another region or at another endpoint; check s3.region and s3.endpoint"
    elif code in _DENIED or status in (401, 403):
        text = f"{bucket}: access denied{f' ({code})' if code else ''}; check the access key and the secret key"
    else:
        reason = " ".join(each for each in (str(status), code, _printable(message)) if each)
        text = f"{bucket}: {what} failed: {reason}"
    return S3Error(text, status=status, code=code)


def connection_failure(config: S3Config, error: Exception) -> S3Error:
    server = f"S3 endpoint {config.endpoint}"
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return S3Error(f"{server}: its certificate is signed by an unknown CA; set s3.endpointCA to that CA")
        return S3Error(f"{server}: its certificate is not valid: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return S3Error(f"{server}: TLS failed: {error.reason or error}; check that it serves HTTPS")
    if isinstance(error, ConnectionRefusedError):
        return S3Error(f"{server}: nothing listens there (connection refused); check s3.endpoint")
    if isinstance(error, socket.gaierror):
        return S3Error(f"{server}: the name cannot be resolved; check s3.endpoint")
    if isinstance(error, (socket.timeout, TimeoutError)):
        return S3Error(f"{server}: no answer in time; check the network, or raise s3.timeout")
    if isinstance(error, OSError):
        return S3Error(f"{server}: {describe(error)}")
    return S3Error(f"{server}: the answer is not HTTP ({type(error).__name__})")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:300]
