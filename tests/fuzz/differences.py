"""Where the two servers answer bad input differently, and why that is right, or does no harm.

Each entry tells by request and answers whether it is the one; what no entry explains is a disagreement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.comparing import Outcome
from tests.fuzz.wire import Input
from tests.fuzz.world import BINDINGS, CONFIG_MAPS, DEFINITIONS, LEASES, ROLES, SECRETS, WIDGETS


@dataclass(frozen=True)
class Difference:
    name: str
    why: str
    applies: Callable[[Input, Outcome, Outcome], bool]


def explained(request: Input, real: Outcome, embedded: Outcome) -> str:
    """The name of the entry that explains why the verdicts differ, or nothing."""
    return next((entry.name for entry in DIFFERENCES if entry.applies(request, real, embedded)), "")


def _path(request: Input) -> str:
    return request.url.partition("?")[0]


def _accepts(request: Input) -> str:
    return next((value for name, value in request.headers if name == "Accept"), "")


def _real_fails(_: Input, real: Outcome, embedded: Outcome) -> bool:
    return real.failed and not embedded.failed


def _without_status(_: Input, real: Outcome, embedded: Outcome) -> bool:
    return real.code == embedded.code and real.code in (400, 406, 413, 415, 417, 431) and not real.reason


def _unreadable_path(request: Input, real: Outcome, embedded: Outcome) -> bool:
    told = embedded.message.startswith(("invalid URL", "Name parameter")) or request.method == "HEAD"
    return embedded.code == 400 and told and real.code in (403, 404, 405)


def _empty_segment(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return embedded.code == 404 and bool(re.search(r"//|%2[fF]", _path(request)))


def _other_method(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return request.method in ("OPTIONS", "TRACE") and {real.code, embedded.code} == {404, 405}


def _negotiated(request: Input, real: Outcome, embedded: Outcome) -> bool:
    either = 406 in (real.code, embedded.code) and {real.code, embedded.code} <= {200, 201, 406, 415}
    document = _path(request) in ("/version", "/apis")
    return either and (document or "*" in _accepts(request) or "protobuf" in _accepts(request))


def _yaml_watch(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return "watch=" in request.url and "yaml" in _accepts(request) and (real.code, embedded.code) == (406, 200)


def _nul_in_selector(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return "%00" in request.url and "elector=" in request.url and (real.code, embedded.code) == (200, 400)


def _foreign_tag(_: Input, real: Outcome, embedded: Outcome) -> bool:
    return embedded.code == 400 and "could not determine a constructor for the tag" in embedded.message


def _case_of_kind(request: Input, real: Outcome, embedded: Outcome) -> bool:
    found = re.findall(rb'"(kind|apiversion)"\s*:', request.body or b"", re.IGNORECASE)
    return any(word not in (b"kind", b"apiVersion") for word in found)


def _slash_in_version(request: Input, real: Outcome, embedded: Outcome) -> bool:
    body = request.body or b""
    return embedded.code == 400 and bool(re.search(rb'"apiVersion":"(/v1|/)"|^k8s\x00.*?a/b/c', body, re.DOTALL))


def _inside_protobuf(request: Input, real: Outcome, embedded: Outcome) -> bool:
    inner = ("JSON is malformed", "truncated", "time out of range", "in position")
    is_json = b"application/json" in (request.body or b"")
    told = any(word in embedded.message for word in inner)
    return (request.body or b"").startswith(b"k8s\x00") and (told or is_json)


def _below_items(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return _path(request) == DEFINITIONS and "unknown field" in embedded.message and real.code in (201, 422)


def _limited(_: Input, real: Outcome, embedded: Outcome) -> bool:
    limits = ("selector: more than 100 requirements", "limit of DeleteOptions is")
    return embedded.code in (400, 413) and any(text in embedded.message for text in limits)


_IN_FULL = (CONFIG_MAPS, SECRETS, WIDGETS, ROLES, BINDINGS, LEASES, DEFINITIONS)


def _in_depth(request: Input, real: Outcome, embedded: Outcome) -> bool:
    is_other = not _path(request).removesuffix("/standing").endswith(_IN_FULL)
    return is_other and real.code in (403, 422) and embedded.code in (200, 201)


DIFFERENCES = [
    Difference(
        "real server fails",
        "The real server answers some bad input with a 500, or drops the connection after a panic (protobuf for a "
        "custom kind, resource versions that are no numbers, applied values that do not convert). The embedded "
        "server says what is wrong with the input, with a 4xx.",
        _real_fails,
    ),
    Difference(
        "no Status",
        "Same code; the real server answers in plain text, before its API sees the request, or in another encoding; "
        "the embedded server with a Status that has the reason.",
        _without_status,
    ),
    Difference(
        "unreadable path",
        "A path with a NUL or with bytes that are no UTF-8 is refused with 400; the real server looks for an object "
        "of that name, which cannot exist.",
        _unreadable_path,
    ),
    Difference(
        "empty segment",
        "A path with an empty segment, or with an escaped slash, is not found; some routes of the real server take "
        "the nothing between two slashes for a name, or for all namespaces.",
        _empty_segment,
    ),
    Difference(
        "other methods",
        "OPTIONS and TRACE are allowed nowhere; whether a path below a resource exists at all is not looked up first.",
        _other_method,
    ),
    Difference(
        "negotiation",
        "The real server negotiates by different code for built-in kinds, custom kinds, discovery and its version, "
        "which do not agree on wildcards and parameters; the embedded server treats all of them as built-in kinds. "
        "It writes JSON and YAML only, so that who accepts nothing but protobuf is told 406.",
        _negotiated,
    ),
    Difference("watch in YAML", "A watch is sent as JSON to a client that asks for YAML.", _yaml_watch),
    Difference(
        "NUL in a selector",
        "The real server's parser stops at a NUL and ignores the rest; here it is no part of any label.",
        _nul_in_selector,
    ),
    Difference(
        "tags in YAML",
        "Tags of other languages (`!!python/object`, `!x`) are refused; the real server ignores them.",
        _foreign_tag,
    ),
    Difference(
        "case of kind",
        "The real server reads `KIND` and `apiversion` as `kind` and `apiVersion` to find the type, and then "
        "complains of them as unknown. Here names have one spelling.",
        _case_of_kind,
    ),
    Difference(
        "slashes in apiVersion",
        "`/v1`, `/` and `a/b/c` are no versions; the real server falls back on the version in the path.",
        _slash_in_version,
    ),
    Difference(
        "inside protobuf",
        "JSON inside protobuf (the fields of managers, embedded objects) and times are checked when they are read; the "
        "real server keeps the bytes, and ignores what the envelope says of their type.",
        _inside_protobuf,
    ),
    Difference(
        "unknown fields in definitions",
        "The real server does not look for unknown fields below `items` and other unions of a schema under Strict; "
        "they are told here.",
        _below_items,
    ),
    Difference(
        "limits",
        "A selector has at most 100 requirements, and DeleteOptions have at most 64 KiB; the real server reads them up "
        "to the size of a URL or body.",
        _limited,
    ),
    Difference(
        "validation in depth",
        "Kinds that only a scheduler, a kubelet or a cloud reads (volumes, affinities, devices, flow control) are "
        "checked for structure and types, and by hand for what users notice; some values that the real server "
        "refuses are stored.",
        _in_depth,
    ),
]

CASES: dict[str, str] = {
    "url: GET /api/v1/bindings": "404 there, 405 here: no route, or a route that only takes POST",
    "option: log ": "options of logs are read by the node that has them",
    "body: eviction of nobody": "whether there is such a pod is looked up before the names are compared",
    "object: configmap metadata/generation = -1": "the generation that a client sends is ignored",
    "object: update deployment metadata/generateName": "checked on updates too, where it has no effect",
    "object: pods spec/terminationGracePeriodSeconds": "refused; there it becomes 1",
    "object: leases spec/strategy": "coordinated leader election is checked, off there by default",
    "object: leases spec/preferredHolder": "coordinated leader election is checked, off there by default",
    "patch: apply to a new one": "of two things wrong, the name is told first",
    "definition: schema {'type': 'object', 'dependencies'": "an empty map is no dependency",
    "definition: schema of spec {'type': 'object', 'dependencies'": "an empty map is no dependency",
    "definition: rule {'rule': \"self.a.find('(')": "told when the rule runs",
}
"""Single cases of the table with another verdict: how they begin, and why."""

FIELDS: dict[str, str] = {
    "patch: JSON ": "the pointer that could not be followed is named as a field; the real server names none",
    "patch: merge widgets {'apiVersion'": "blamed on the patch",
    "object: widget": "the real server adds that its rules were not checked",
    "object: update widget kind": "of two things wrong, the other is told first",
    "object: update pods": "validation in depth",
    "object: update services spec/clusterIP": "an address that is none is also a change",
    "object: update jobs spec/selector": "the labels are named together",
    "object: jobs metadata/name": "the labels of the job are too long as well as the template's",
    "definition: ": "of several things wrong with a definition, not all are told, or one more",
}
"""Single cases of the table whose causes name other fields: how they begin, and why."""
