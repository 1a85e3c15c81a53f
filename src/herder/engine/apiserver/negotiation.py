"""What the client can read, and what it sent: Accept and Content-Type as the real server understands them.

Answers are JSON or YAML. A client that prefers Kubernetes protobuf but also accepts JSON gets JSON; every Go client
does. One that accepts nothing but protobuf is refused, as it would be by a server without that encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from herder.engine.client.wire import Request
from herder.engine.meta.errors import NotAcceptable, UnsupportedMediaType

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

LONGEST_ACCEPT = 4096
_MEDIA_TYPES = f"{JSON}, {YAML}, {PROTOBUF}"
_SERVED = (JSON, YAML)
_TRANSFORMS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})=(?:{_TOKEN}|"[^"]*")?')
_PRETTY_AGENTS = ("curl", "Wget", "Mozilla/")


@dataclass(frozen=True, slots=True)
class Rendering:
    """How to write the answer. Hashable, so that a rendering shared by many watchers is made once."""

    media_type: str = JSON
    transform: str = ""  # Table, PartialObjectMetadata or PartialObjectMetadataList
    transform_version: str = "v1"  # of meta.k8s.io
    pretty: bool = False
    include_object: str = ""  # for tables

    @property
    def plain(self) -> bool:
        """Stored JSON can be sent as it is."""
        return self.media_type is JSON and not self.transform and not self.pretty


@dataclass(frozen=True, slots=True)
class _Clause:
    media_type: str
    quality: float
    parameters: dict[str, str]


def negotiate(request: Request, *, transforms: bool = True) -> Rendering:
    """The rendering to answer in; raises NotAcceptable where there is none."""
    accept = request.headers.get("accept", "")
    pretty = _wants_pretty(request)
    include = request.query.get("includeObject") if request.query.items else ""
    if len(accept) + len(include) > LONGEST_ACCEPT:  # neither to be parsed nor to be remembered
        raise NotAcceptable(f"the headers Accept and includeObject have more than {LONGEST_ACCEPT} characters")
    return _negotiated(accept, transforms, pretty, include)


@lru_cache(maxsize=512)
def _negotiated(accept: str, transforms: bool, pretty: bool, include: str) -> Rendering:
    clauses = _clauses(accept)
    if not clauses and not accept.strip():
        return Rendering(pretty=pretty)
    matched = False
    for clause in clauses:
        media_type = _served(clause.media_type)
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


def _served(media_type: str) -> str | None:
    if media_type in ("*/*", JSON):
        return JSON
    return YAML if media_type == YAML else None


def _wants_pretty(request: Request) -> bool:
    """As the query says; else for people, who are told from programs by what they call their client."""
    if request.query.items and "pretty" in request.query:
        return request.query.get("pretty") not in ("false", "0")
    return request.headers.get("user-agent", "").startswith(_PRETTY_AGENTS)


def body_type(request: Request) -> str:
    """The media type of the body; JSON where the request names none."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if not media_type:
        return JSON
    if media_type not in (JSON, YAML, PROTOBUF) or (parameters and not _are_parameters(parameters)):
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise UnsupportedMediaType(message + _MEDIA_TYPES)
    return media_type


def is_yaml(request: Request) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == YAML


def _are_parameters(text: str) -> bool:
    """Whether what follows a media type is `name=value` and each name is given once."""
    pieces = [piece.strip() for piece in text.split(";")]
    if not pieces[-1]:
        pieces.pop()
    found = [_PARAMETER.fullmatch(piece) for piece in pieces]
    names = [match[1].lower() for match in found if match is not None]
    return len(names) == len(pieces) == len(set(names))
