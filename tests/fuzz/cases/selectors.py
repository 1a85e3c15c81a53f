# ruff: noqa: E501 — many short requests to a line read better than one field a line
"""Label and field selectors that cannot be parsed, or that use unsupported fields."""

from __future__ import annotations

from urllib.parse import quote

from tests.fuzz.server_pair import CONFIG_MAPS, DEPLOYMENTS, PODS, SECRETS, WIDGETS
from tests.fuzz.wire import Input

_LABELS = [
    "=", "==", "a==", "=b", "a=b=c", "a===b", "a!=", "a!", "!", "!!a", "! a", "!a=b", "a b", "a,", ",a", "a,,b", ",", "a=b,", "a in", "a in ()", "a in (", "a in (b",
    "a in b", "a in (b c)", "a in (b,)", "a in (,)", "a in (b,,c)", "in (a)", "in", "notin", "a notin", "a notin ()", "in in (in)", "a In (b)", "a in(b)", "a  in  ( b )",
    "a>1", "a<1", "a>b", "a>", "a>1.5", "a>-1", "a > 1 , a < 2", "a>=1", "a<>b", "a>99999999999999999999", "a/b/c=d", "/a=b", "a/=b", "A.b/c", "-a", "a-", "a.", "_a",
    "a" * 64, "a=" + "b" * 64, "x" * 254 + "/a", "a=b c", "a=-b", "a=b-", "a=é", "é", "a=b;c", "a~=b", "a=(b)", "(a)", "a)", "a=\x00", "a=\n", "a=b\t", "\ta", "a=😀", "a in (😀)", "a='b'",
    'a="b"', "a=b,a=c", "a,!a", "a in (b),", "kubernetes.io/a in (b)", "UPPER/a", "a..b/c=d", "a=b/c", "notin in (a)", "a not in (b)", "a=in", "in=a", "!in",
]  # fmt: skip

_FIELDS = [
    "=", "==", "a", "a=b", "metadata.name", "metadata.name=", "=b", "metadata.name=a,", ",metadata.name=a", "metadata.name=a,,metadata.name=b", "metadata.name>a", "metadata.name!",
    "metadata.name=a=b", "metadata.name=a\\", "metadata.name=a\\b", "metadata.name=a\\,b", "metadata.name=a\\=b", "metadata.name=\\\\", "metadata.name in (a)", "metadata.uid=x",
    "metadata.labels=x", "metadata.name=é", "metadata.name=\x00", "spec.color=red", "spec.color!=red", "spec.nope=1", "spec.nodeName=x", "status.phase=Nope", "status.phase==Running",
    "type=Opaque", "type!=Opaque", "spec.restartPolicy=x", "spec.schedulerName=x", "status.podIP=", "metadata.name!=a", "metadata.namespace=other", "metadata.namespace=", "metadata.name=UPPER",
    "metadata.name = a", " metadata.name=a", "metadata.name=a ", "data.a=b", ".metadata.name=a", "METADATA.NAME=a", "involvedObject.kind=x", "status.successful=x", "spec.replicas=1",
]  # fmt: skip

_KINDS = {"configmaps": CONFIG_MAPS, "widgets": WIDGETS}
_MORE_KINDS = {**_KINDS, "pods": PODS, "secrets": SECRETS, "deployments": DEPLOYMENTS}

CASES = [
    Input(f"selector: {kind} labels {text[:70]!r}", "GET", f"{url}?labelSelector={quote(text)}")
    for kind, url in _KINDS.items()
    for text in _LABELS
]
CASES += [
    Input(f"selector: {kind} fields {text!r}", "GET", f"{url}?fieldSelector={quote(text)}")
    for kind, url in _MORE_KINDS.items()
    for text in _FIELDS
]
CASES += [
    Input("selector: deletecollection labels", "DELETE", f"{CONFIG_MAPS}?dryRun=All&labelSelector=a%20b"),
    Input("selector: deletecollection fields", "DELETE", f"{CONFIG_MAPS}?dryRun=All&fieldSelector=nope%3D1"),
    Input("selector: deletecollection widgets fields", "DELETE", f"{WIDGETS}?dryRun=All&fieldSelector=nope%3D1"),
    Input("selector: get ignores them", "GET", f"{CONFIG_MAPS}/standing?labelSelector=a%20b&fieldSelector=nope"),
    Input("selector: invalid UTF-8", "GET", f"{CONFIG_MAPS}?labelSelector=a%3D%ff"),
    Input("selector: very long", "GET", f"{CONFIG_MAPS}?labelSelector={','.join(f'a{n}=b' for n in range(900))}"),
]
