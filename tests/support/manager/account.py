"""`herder run` as the service account that the manager's roles are bound to, and its requests in the audit log.

kube-apiserver logs all requests of the account. A request that RBAC denies is missing in `herder.app.rbac.rights`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from herder.api.capi.inventory import NAMESPACE
from herder.api.management.names import SYSTEM_NAMESPACE
from herder.app.rbac.rights import PARTS, Right
from herder.app.rbac.roles import ACCOUNT, role_objects
from tests.support.peers import peer

USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
GROUPS = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
AUDIT_LOG, KUBECONFIG = "audit.log", "manager.kubeconfig"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [USER]}, {"level": "None"}],
}
FORBIDDEN, CREATED = 403, 201


def audit_flags(directory: Path) -> list[str]:
    """Flags of a kube-apiserver that logs the requests of the account."""
    policy = directory / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    return [f"--audit-policy-file={policy}", f"--audit-log-path={directory / AUDIT_LOG}", "--audit-log-maxsize=1000"]


def parts_of(flags: Sequence[str]) -> list[str]:
    """The parts of the manager that flags of `herder run` enable."""
    enabled = {
        "base": True,
        "core": "--capi-core=external" not in flags,
        "machines": "--no-machines" not in flags,
        "gateway": "--gateway-listen" in flags,
        "in-memory": "--in-memory" in flags,
        "runner": "--runner" in flags,
    }
    return [part for part in PARTS if enabled[part]]


def account_on(kubeconfig: Path, parts: Iterable[str], command_prefix: Sequence[str] = ()) -> Path:
    """The kubeconfig of the account, which is granted the rights of these parts.

    `kubeconfig` is the administrator's. Without kube-apiserver, the manager uses it too.
    """
    account = kubeconfig.parent / KUBECONFIG
    if not account.exists():
        return kubeconfig
    namespaces = (NAMESPACE, SYSTEM_NAMESPACE, "kube-node-lease")
    wanted: list[Any] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}} for namespace in namespaces
    ]
    wanted.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}})
    wanted += role_objects(parts)
    command: list[str | Path] = [*command_prefix, peer("kubectl"), "--kubeconfig", kubeconfig]
    done = subprocess.run(
        [*command, "apply", "--server-side", "-f", "-"],
        input=yaml.safe_dump_all(wanted),
        env=os.environ | {"KUBECACHEDIR": f"{kubeconfig}.cache"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return account


# --- requests -------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """What RBAC decides about. `name` is empty for lists and watches of all objects."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def is_covered_by(self, right: Right) -> bool:
        return (
            self.group == right.group
            and self.verb in right.verbs
            and (self.resource in right.resources or "*" in right.resources)
            and right.namespace in ("", self.namespace)
            and (not right.names or self.name in right.names)
        )


def requests_in(log: Path) -> Iterator[tuple[Request, bool]]:
    """Requests of the manager, and whether they were denied. Those on behalf of users are impersonations."""
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != USER:
            continue
        if user := event.get("impersonatedUser"):
            yield from ((each, False) for each in _impersonations(user))
            continue
        reference = event.get("objectRef") or {}
        if "resource" not in reference:
            continue
        status = (event.get("responseStatus") or {}).get("code")
        is_denied = status == FORBIDDEN and _is_by_rbac(event)
        for verb in (event["verb"], *(("create",) if event["verb"] == "patch" and status == CREATED else ())):
            yield _request(verb, event, reference), is_denied


def _is_by_rbac(event: Any) -> bool:
    """Writes are also forbidden by admission, quota and namespaces that are being deleted."""
    return bool((event.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid")


def _request(verb: str, event: Any, reference: Any) -> Request:
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    return Request(
        verb, reference.get("apiGroup", ""), resource, reference.get("namespace", ""), reference.get("name", "")
    )


def _impersonations(user: Any) -> Iterator[Request]:
    account = user["username"].removeprefix("system:serviceaccount:")
    if account != user["username"]:
        namespace, _, name = account.partition(":")
        yield Request("impersonate", "", "serviceaccounts", namespace, name)
    else:
        yield Request("impersonate", "", "users", "", user["username"])
    for group in user.get("groups") or ():
        yield Request("impersonate", "", "groups", "", group)
    for extra, values in (user.get("extra") or {}).items():
        for value in values:
            yield Request("impersonate", "authentication.k8s.io", f"userextras/{extra}", "", value)


def assert_nothing_denied(kubeconfig: Path) -> None:
    """No request of the manager on this API server was denied by RBAC."""
    log = kubeconfig.parent / AUDIT_LOG
    if log.exists():
        denied = sorted({request for request, is_denied in requests_in(log) if is_denied})
        assert denied == [], f"missing in herder.app.rbac.rights: {denied}"
