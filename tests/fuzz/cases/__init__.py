"""Invalid requests chosen by hand, in groups: mistakes and attacks."""

from __future__ import annotations

from tests.fuzz.cases import bodies, definitions, headers, objects, options, patches, selectors, urls
from tests.fuzz.wire import Input

CASES: list[Input] = [
    *urls.CASES,
    *options.CASES,
    *selectors.CASES,
    *headers.CASES,
    *bodies.CASES,
    *objects.CASES,
    *patches.CASES,
    *definitions.CASES,
]
