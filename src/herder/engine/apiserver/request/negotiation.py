"""Content negotiation: Accept and Content-Type headers by kube-apiserver's rules.

Responses are JSON or YAML. A client that prefers Kubernetes protobuf but also accepts JSON (every Go client does) gets
JSON. A client that accepts only protobuf gets 406, as from a server without that encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from herder.engine.meta.errors import NotAcceptable, UnsupportedMediaType
from herder.engine.wire import Request

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

MAX_ACCEPT = 4096
_MEDIA_TYPES = f"{JSON}, {YAML}, {PROTOBUF}"
_SERVED = (JSON, YAML)
_TRANSFORMS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})=(?:{_TOKEN}|"[^"]*")?')
_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/")


@dataclass(frozen=True, slots=True)
class Rendering:
    """The negotiated format of a response. Hashable, so that many watchers can share one encoded event."""

    media_type: str = JSON
    transform: str = ""  # Table, PartialObjectMetadata or PartialObjectMetadataList
    transform_version: str = "v1"  # of meta.k8s.io
    pretty: bool = False
    include_object: str = ""  # for Tables

    @property
    def plain(self) -> bool:
        """Whether stored JSON can be sent unchanged."""
        return self.media_type is JSON and not self.transform and not self.pretty


@dataclass(frozen=True, slots=True)
class _Clause:
    """A media range of the Accept header."""

    media_type: str
    quality: float
    parameters: dict[str, str]


def negotiate(request: Request, *, transforms: bool = True) -> Rendering:
    """Return the format of the response. Raises NotAcceptable if the client accepts none that is served."""
    accept = request.headers.get("accept", "")
    pretty = _wants_pretty(request)
    include = request.query.get("includeObject") if request.query.items else ""
    if len(accept) + len(include) > MAX_ACCEPT:  # too long to parse and to cache
        raise NotAcceptable(f"Accept header and includeObject: more than {MAX_ACCEPT} characters")
    return _negotiated(accept, transforms, pretty, include)


@lru_cache(maxsize=512)
def _negotiated(accept: str, transforms: bool, pretty: bool, include: str) -> Rendering:
    clauses = _clauses(accept)
    if not clauses and not accept.strip():
        return Rendering(pretty=pretty)
    matched = False
    for clause in clauses:
        media_type = _response_type(clause.media_type)
        if media_type is None:
            continue
        matched = True
        transform = clause.parameters.get("as", "")
        if not transform or not transforms:
            if transform or clause.parameters.get("g") or clause.parameters.get("v"):
                continue
            return Rendering(media_type, pretty=pretty)
        group, version = clause.parameters.get("g", ""), clause.parameters.get("v", "")
        if transform in _TRANSFORMS and group == "meta.k8s.io" and version in ("v1", "v1beta1"):
            return Rendering(media_type, transform, version, pretty, include)
    if matched:
        raise NotAcceptable(f"only the following media types are accepted: {_MEDIA_TYPES}")
    raise NotAcceptable(f"406: Not Acceptable\n\nAvailable representations: {_MEDIA_TYPES}", details={})


def _clauses(accept: str) -> list[_Clause]:
    clauses = []
    for part in accept.split(","):
        media_type, *parameters = (piece.strip() for piece in part.split(";"))
        if not media_type:
            continue
        pairs = dict(parameter.partition("=")[::2] for parameter in parameters if parameter)
        try:
            quality = float(pairs.pop("q", "1"))
        except ValueError:
            quality = 1.0
        clauses.append(_Clause(media_type.lower(), quality, pairs))
    clauses.sort(key=lambda clause: -clause.quality)
    return clauses


def _response_type(media_type: str) -> str | None:
    if media_type in ("*/*", JSON):
        return JSON
    return YAML if media_type == YAML else None


def _wants_pretty(request: Request) -> bool:
    """Whether to indent: as the query says, else for clients used by people (curl, wget, browsers)."""
    if request.query.items and "pretty" in request.query:
        return request.query.get("pretty") not in ("false", "0")
    return request.headers.get("user-agent", "").startswith(_PRETTY_AGENTS)


def body_type(request: Request) -> str:
    """Return the media type of the body; JSON if the request has no Content-Type."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if not media_type:
        return JSON
    if media_type not in (JSON, YAML, PROTOBUF) or (parameters and not _valid_parameters(parameters)):
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise UnsupportedMediaType(message + _MEDIA_TYPES)
    return media_type


def is_yaml(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == YAML


def _valid_parameters(text: str) -> bool:
    """Whether the text after a media type consists of `name=value` parameters with unique names."""
    pieces = [piece.strip() for piece in text.split(";")]
    if not pieces[-1]:
        pieces.pop()
    found = [_PARAMETER.fullmatch(piece) for piece in pieces]
    names = [match[1].lower() for match in found if match is not None]
    return len(names) == len(pieces) == len(set(names))
