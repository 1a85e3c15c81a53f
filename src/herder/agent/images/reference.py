"""Parse image references: `[registry[:port]/]repository[:tag][@digest]`, with the usual defaults."""

import re
from typing import NamedTuple

DEFAULT_REGISTRY = "index.docker.io"
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$")
_TAG = re.compile(r"[\w][\w.-]{0,127}$")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")


class ImageError(Exception):
    """An image is not available; the message says which, and why."""


class Reference(NamedTuple):
    registry: str
    repository: str
    tag: str
    digest: str  # takes precedence over the tag

    @property
    def pinned(self) -> str:
        """Return the digest or tag to request from a registry."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse(text: str) -> Reference:
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.match(digest):
        raise ImageError(f"image {text!r}: the digest must be sha256: and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, path = DEFAULT_REGISTRY, rest
    elif first == "docker.io":
        first = DEFAULT_REGISTRY
    path, colon, tag = path.partition(":")
    if colon and not _TAG.match(tag):
        raise ImageError(f"image {text!r}: {tag!r} is no tag")
    if first == DEFAULT_REGISTRY and "/" not in path:
        path = "library/" + path
    if not all(_COMPONENT.match(part) for part in path.split("/")):
        raise ImageError(f"image {text!r}: {path!r} is no repository")
    return Reference(first, path, tag if digest else tag or "latest", digest)
