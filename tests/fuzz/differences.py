"""Where the two servers respond differently to invalid input, and why that is correct or harmless.

Each entry recognizes its cases by request and outcomes; a case without an entry is a disagreement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.outcomes import Outcome
from tests.fuzz.server_pair import BINDINGS, CONFIG_MAPS, DEFINITIONS, LEASES, ROLES, SECRETS, WIDGETS
from tests.fuzz.wire import Input


@dataclass(frozen=True)
class Difference:
    name: str
    why: str
    applies: Callable[[Input, Outcome, Outcome], bool]


def explained(request: Input, real: Outcome, embedded: Outcome) -> str:
    """The name of the entry that explains why the outcomes differ; empty if there is none."""
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
    reported = embedded.message.startswith(("invalid URL", "Name parameter")) or request.method == "HEAD"
    return embedded.code == 400 and reported and real.code in (403, 404, 405)


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
    return any(key not in (b"kind", b"apiVersion") for key in found)


def _slash_in_version(request: Input, real: Outcome, embedded: Outcome) -> bool:
    body = request.body or b""
    return embedded.code == 400 and bool(re.search(rb'"apiVersion":"(/v1|/)"|^k8s\x00.*?a/b/c', body, re.DOTALL))


def _inside_protobuf(request: Input, real: Outcome, embedded: Outcome) -> bool:
    inner = ("JSON is malformed", "truncated", "time out of range", "in position")
    is_json = b"application/json" in (request.body or b"")
    reported = any(text in embedded.message for text in inner)
    return (request.body or b"").startswith(b"k8s\x00") and (reported or is_json)


def _below_items(request: Input, real: Outcome, embedded: Outcome) -> bool:
    return _path(request) == DEFINITIONS and "unknown field" in embedded.message and real.code in (201, 422)


def _limited(_: Input, real: Outcome, embedded: Outcome) -> bool:
    limits = ("selector: more than 100 requirements", "selector: more than 8192 values", "limit of DeleteOptions is")
    return embedded.code in (400, 413) and any(text in embedded.message for text in limits)


_FULLY_VALIDATED = (CONFIG_MAPS, SECRETS, WIDGETS, ROLES, BINDINGS, LEASES, DEFINITIONS)


def _in_depth(request: Input, real: Outcome, embedded: Outcome) -> bool:
    is_other = not _path(request).removesuffix("/standing").endswith(_FULLY_VALIDATED)
    return is_other and real.code in (403, 422) and embedded.code in (200, 201)


DIFFERENCES = [
    Difference(
        "real server fails",
        "kube-apiserver answers some invalid input with 500, or drops the connection after a panic: protobuf for a "
        "custom kind, resource versions that are not numbers, applied values that cannot be converted. The embedded "
        "server returns a 4xx code that says what is wrong with the input.",
        _real_fails,
    ),
    Difference(
        "no Status",
        "The code is the same. kube-apiserver answers in plain text, before its API sees the request, or in another "
        "encoding; the embedded server returns a Status with the reason.",
        _without_status,
    ),
    Difference(
        "unreadable path",
        "The embedded server rejects a path with a NUL or with bytes that are not UTF-8 with 400; kube-apiserver looks "
        "for an object of that name, which cannot exist.",
        _unreadable_path,
    ),
    Difference(
        "empty segment",
        "The embedded server returns 404 for a path with an empty segment or an escaped slash; some routes of "
        "kube-apiserver take the empty segment for a name, or for all namespaces.",
        _empty_segment,
    ),
    Difference(
        "other methods",
        "The embedded server allows OPTIONS and TRACE on no path, and does not check first whether a path below a "
        "resource exists.",
        _other_method,
    ),
    Difference(
        "negotiation",
        "kube-apiserver negotiates content types differently for built-in kinds, custom kinds, discovery and version; "
        "they disagree on wildcards and parameters. The embedded server treats all of them like built-in kinds. It "
        "writes only JSON and YAML, so a client that accepts only protobuf receives 406.",
        _negotiated,
    ),
    Difference(
        "watch in YAML", "The embedded server sends a watch as JSON to a client that requests YAML.", _yaml_watch
    ),
    Difference(
        "NUL in a selector",
        "kube-apiserver's parser stops at a NUL and ignores the rest; the embedded server rejects the selector.",
        _nul_in_selector,
    ),
    Difference(
        "tags in YAML",
        "The embedded server rejects language-specific tags (`!!python/object`, `!x`); kube-apiserver ignores them.",
        _foreign_tag,
    ),
    Difference(
        "case of kind",
        "kube-apiserver reads `KIND` and `apiversion` as `kind` and `apiVersion` to find the type, and then reports "
        "them as unknown fields. In the embedded server, field names are case-sensitive.",
        _case_of_kind,
    ),
    Difference(
        "slashes in apiVersion",
        "The embedded server rejects the versions `/v1`, `/` and `a/b/c`; kube-apiserver falls back to the version in "
        "the path.",
        _slash_in_version,
    ),
    Difference(
        "inside protobuf",
        "The embedded server validates times and JSON inside protobuf (managed fields, embedded objects) when it reads "
        "them; kube-apiserver keeps the bytes, and ignores the type in the envelope.",
        _inside_protobuf,
    ),
    Difference(
        "unknown fields in definitions",
        "With field validation Strict, the embedded server reports unknown fields below `items` and other unions of a "
        "schema; kube-apiserver does not look for them.",
        _below_items,
    ),
    Difference(
        "limits",
        "In the embedded server, a selector has at most 100 requirements of at most 8,192 values, and DeleteOptions "
        "have at most 64 KiB; kube-apiserver limits them only by the size of a URL or body. A Status lists errors up "
        "to 256 KiB and counts the rest; kube-apiserver lists all of them. A Cluster with more than 20,000 values gets "
        "422; an object with references and more than 40,000 values gets 403. The webhooks of `herder run` return the "
        "same codes.",
        _limited,
    ),
    Difference(
        "validation in depth",
        "Only a scheduler, a kubelet or a cloud reads some kinds and fields (volumes, affinities, devices, flow "
        "control). For these, the embedded server validates structure, types and the most common mistakes. It stores "
        "some values that kube-apiserver rejects.",
        _in_depth,
    ),
]

CASES: dict[str, str] = {
    "url: GET /api/v1/bindings": "kube-apiserver 404, embedded 405: no route, or a route that only accepts POST",
    "option: log ": "options of logs are validated by the node",
    "body: eviction of nobody": "the existence of the pod is checked before the names are compared",
    "object: configmap metadata/generation = -1": "the generation that a client sends is ignored",
    "object: update deployment metadata/generateName": "checked on updates too, where it has no effect",
    "object: pods spec/terminationGracePeriodSeconds": "rejected; kube-apiserver sets it to 1",
    "object: leases spec/strategy": "coordinated leader election is validated; off by default in kube-apiserver",
    "object: leases spec/preferredHolder": "coordinated leader election is validated; off by default in kube-apiserver",
    "patch: apply to a new one": "of two errors, the name is reported first",
    "definition: schema {'type': 'object', 'dependencies'": "an empty map is no dependency",
    "definition: schema of spec {'type': 'object', 'dependencies'": "an empty map is no dependency",
    "definition: rule {'rule': \"self.a.find('(')": "reported when the rule runs",
}
"""Single cases of the table with another outcome: prefix, and why."""

FIELDS: dict[str, str] = {
    "patch: JSON ": "the unresolvable pointer is reported as a field; kube-apiserver reports none",
    "patch: merge widgets {'apiVersion'": "attributed to the patch",
    "object: widget": "kube-apiserver adds that its rules were not evaluated",
    "object: update widget kind": "of two errors, the other is reported first",
    "object: update pods": "validation in depth",
    "object: update services spec/clusterIP": "an invalid address is also a change",
    "object: update jobs spec/selector": "the labels are reported together",
    "object: jobs metadata/name": "the labels of the job are too long as well as the template's",
    "definition: ": "of several errors in a definition, not all are reported, or one more",
}
"""Single cases of the table whose causes name other fields: prefix, and why."""
