"""Function libraries of Kubernetes 1.36's base environment."""

from __future__ import annotations

from functools import cache

from herder.engine.schema.cel.declarations import Functions, by_name


@cache
def functions(*, json_patch: bool = False) -> Functions:
    """Return all overloads by function name; assembled once, on first use."""
    from herder.engine.schema.cel.library import (
        authorizer,
        dates,
        formats,
        jsonpatch,
        lists,
        network,
        optionals,
        quantities,
        semver,
        standard,
        strings,
        urls,
    )

    modules = [standard, dates, strings, lists, optionals, urls, quantities, network, formats, semver, authorizer]
    libraries = [module.library for module in modules]
    return by_name([*libraries, jsonpatch.library] if json_patch else libraries)
