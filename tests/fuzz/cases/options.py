# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Query options with invalid values."""

from __future__ import annotations

from tests.fuzz.server_pair import CONFIG_MAPS, DEPLOYMENTS, PODS, WIDGETS, config_map, posted, widget
from tests.fuzz.wire import Input

_LONG = "x" * 130

_LISTING = [
    "limit=x", "limit=-1", "limit=1.5", "limit=9223372036854775808", "limit=", "limit=1&limit=x", "limit=%31", "limit=0x10",
    "limit=1&continue=x", "continue=x", "continue=%ff", "continue=e30", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiIn0",
    "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIifQ", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8ifQ",
    "continue=eyJ2IjoidjkiLCJydiI6MSwic3RhcnQiOiJhIn0", "continue=bm90IGpzb24", "continue=e30&resourceVersion=5",
    "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJhIn0",
    "resourceVersion=x", "resourceVersion=-1", "resourceVersion=1.5", "resourceVersion=99999999999999999999999", "resourceVersion=%20",
    "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=Nope", "resourceVersion=0&resourceVersionMatch=Exact",
    "resourceVersion=0&resourceVersionMatch=Nope", "resourceVersion=0&resourceVersionMatch=NotOlderThan&continue=x",
    "resourceVersion=x&resourceVersionMatch=Exact", "resourceVersion=x&resourceVersionMatch=NotOlderThan",
    "sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=x", "timeoutSeconds=x", "timeoutSeconds=-1", "timeoutSeconds=1.5",
    "timeoutSeconds=99999999999999999999", "allowWatchBookmarks=x", "watch=x", "watch=0", "watch=false", "watch=False", "watch=no",
    "pretty=x", "unknown=1", "%zz=1", "a=%zz", "&&&", "=", "=x", "a;b", "limit=1;x", "a=b=c", "%00=1", "labelSelector", "timeout=x", "timeout=1s",
    "timeout=-1s", "timeout=99999999h", "timeout=0s", "dryRun=x", "fieldManager=%00", "kind=x", "apiVersion=v9", "limit=5&Limit=x",
]  # fmt: skip

_WATCHING = [
    "resourceVersion=x", "resourceVersion=-1", "resourceVersion=99999999999999999999999", "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan",
    "resourceVersionMatch=Nope", "sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=true&resourceVersionMatch=Exact",
    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x", "sendInitialEvents=x", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=x",
    "sendInitialEvents=false&resourceVersionMatch=Nope", "continue=x", "limit=x", "limit=-1", "timeoutSeconds=x", "labelSelector=%3D", "fieldSelector=nope%3D1",
    "resourceVersion=5&resourceVersionMatch=NotOlderThan", "resourceVersion=0&continue=x", "resourceVersion=1&continue=x", "allowWatchBookmarks=maybe",
]  # fmt: skip

_WRITING = [
    "dryRun=x", "dryRun=", "dryRun=all", "dryRun=All&dryRun=x", "dryRun=All&dryRun=All", "dryRun=All,All", "fieldManager=%00", "fieldManager=a%0Ab",
    f"fieldManager={_LONG}", "fieldManager=%F0%9F%92%A5", "fieldManager=%ff", "fieldManager=%E2%80%8B", "fieldManager=", "fieldManager=a&fieldManager=b", "fieldManager=a%C2%ADb",
    "fieldValidation=x", "fieldValidation=strict", "fieldValidation=Strict&fieldValidation=Ignore", "fieldValidation=", "force=true", "force=x", "force=",
    "pretty=maybe", "nope=1", "dryRun=x&fieldValidation=x&fieldManager=%00",
]  # fmt: skip

_DELETING = [
    "dryRun=x", "propagationPolicy=x", "propagationPolicy=orphan", "propagationPolicy=", "propagationPolicy=Orphan&orphanDependents=true",
    "gracePeriodSeconds=x", "gracePeriodSeconds=1.5", "gracePeriodSeconds=99999999999999999999", "orphanDependents=x&propagationPolicy=Orphan",
    "propagationPolicy=x&dryRun=x", "gracePeriodSeconds=&dryRun=x", "resourceVersion=x", "ignoreStoreReadErrorWithClusterBreakingPotential=true",
    "ignoreStoreReadErrorWithClusterBreakingPotential=true&gracePeriodSeconds=1",
]  # fmt: skip

_GETTING = [
    "resourceVersion=x",
    "resourceVersion=-1",
    "resourceVersion=99999999999999999999999",
    "resourceVersion=",
    "pretty=%ff",
    "timeout=x",
    "export=true",
]

_LOGS = [
    "container=nope", "tailLines=x", "tailLines=-1", "limitBytes=0", "limitBytes=x", "sinceSeconds=0", "sinceSeconds=x", "sinceTime=x",
    "sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z", "follow=x&container=nope", "stream=Nope", "stream=Stdout&tailLines=1", "timestamps=x&container=nope",
]  # fmt: skip

CASES = [
    Input(f"option: list {kind} {query}", "GET", f"{url}?{query}")
    for kind, url in (("configmaps", CONFIG_MAPS), ("widgets", WIDGETS))
    for query in _LISTING
]
CASES += [
    Input(f"option: watch {kind} {query}", "GET", f"{url}?watch=1&{query}")
    for kind, url in (("configmaps", CONFIG_MAPS), ("widgets", WIDGETS))
    for query in _WATCHING
]
for _query in _WRITING:
    _safe = _query if "dryRun" in _query else f"{_query}&dryRun=All"
    CASES.append(posted(f"option: create {_query}", f"{CONFIG_MAPS}?{_safe}", config_map("x-option") | {"nope": 1}))
    CASES.append(posted(f"option: create widget {_query}", f"{WIDGETS}?{_safe}", widget("x-option") | {"nope": 1}))
    CASES.append(posted(f"option: update {_query}", f"{CONFIG_MAPS}/standing?{_safe}", config_map(), "PUT"))
    for _type in ("merge-patch+json", "json-patch+json", "apply-patch+yaml"):
        _body = [] if _type.startswith("json") else config_map()
        CASES.append(
            posted(
                f"option: {_type} {_query}", f"{CONFIG_MAPS}/standing?{_safe}", _body, "PATCH", f"application/{_type}"
            )
        )
for _query in _DELETING:
    _safe = _query if "dryRun" in _query else f"{_query}&dryRun=All"
    CASES.append(Input(f"option: delete {_query}", "DELETE", f"{CONFIG_MAPS}/standing?{_safe}"))
    CASES.append(Input(f"option: delete widget {_query}", "DELETE", f"{WIDGETS}/standing?{_safe}"))
    CASES.append(Input(f"option: deletecollection {_query}", "DELETE", f"{CONFIG_MAPS}?{_safe}"))
CASES += [
    Input(f"option: get {url.rpartition('/')[2]} {query}", "GET", f"{url}/standing?{query}")
    for query in _GETTING
    for url in (CONFIG_MAPS, WIDGETS, DEPLOYMENTS)
]
CASES += [Input(f"option: log {query}", "GET", f"{PODS}/standing/log?{query}") for query in _LOGS]
