"""Where kubectl's output may differ between the two engines, and why. Everything else must be equal."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    command: str  # a regular expression that matches the commands
    pattern: str  # excluded from the comparison
    reason: str


DIFFERENCES = (
    Difference(
        r"version|get --raw /version|cluster-info",
        r"Server Version: .*|.*(gitVersion|gitCommit|goVersion|compiler|buildDate|platform|gitTreeState).*",
        "each server reports its own build; the embedded server adds +herder1 to the version it is compatible with",
    ),
    Difference(
        r"api-(versions|resources)",
        r"^(.* )?(?!\S*k8s\.io/)[\w-]+\.[\w.-]+/v\d.*\n|^[\w-]+\.(?!\S*k8s\.io$)[\w-]+\.[\w.-]+\n",
        "the embedded server includes Herder's kinds, and other tests define theirs",
    ),
    Difference(
        r"auth whoami",
        r"(?<=Username  ).*|(?<=credential-id  ).*",
        "each server's administrator has its own name and certificate",
    ),
    Difference(
        r"describe configmaps",
        r"Name:  kube-root-ca\.crt(.|\n)*?---END CERTIFICATE---",
        "each server has its own CA and its own description of it",
    ),
    Difference(
        r"(describe|get) (persistentvolumeclaims|pvc)",
        r"^Finalizers:.*$",
        "the embedded server has no volume controllers, which would remove the protection finalizer",
    ),
    Difference(
        r"describe node",
        r"^Taints:.*$",
        "the embedded server has no node controller, which would remove the not-ready taint of a new Node",
    ),
    Difference(
        r"apply .*--server-side|patch ",
        r"(?<=Error from server)( \(BadRequest\))?(?=: (failed to create typed|map: map|unknown patch type))",
        "for a patch that does not match the type, the embedded server returns 400 and kube-apiserver 500",
    ),
    Difference(
        r"patch .*--type=json",
        r"(?<=The request is invalid: ).*",
        "for a JSON patch that cannot be applied, the embedded server also names the failed operation",
    ),
    Difference(
        r"patch ",
        r"(?<=The request is invalid: patch: Invalid value: ).*",
        "for a patch with values of the wrong type, the embedded server also names the field",
    ),
    Difference(
        r"patch pod",
        r"^(@@|[-+ ]).*\n|^changed: .*\n|^\n",
        "the embedded server names the immutable fields; kube-apiserver prints both pods",
    ),
    Difference(
        r"get (flowschemas|prioritylevelconfigurations)",
        r"(.|\n)+",
        "the embedded server has no API Priority and Fairness and creates none of its default objects",
    ),
    Difference(
        r"get apiservices",
        r"(.|\n)+",
        "the embedded server has no aggregated API servers, and its custom groups differ",
    ),
    Difference(
        r"get (componentstatuses|servicecidrs)",
        r"(.|\n)+",
        "the embedded server has no separate components and creates no ServiceCIDRs",
    ),
    Difference(
        r"(attach|cp|exec|port-forward) ",
        r"(?<=unable to upgrade connection: ).*",
        "not supported: the runner executes pods as plain processes",
    ),
    Difference(
        r"explain ",
        r"^ {2,}(?!.*<|enum:).*\n|^.*<(empty|no description)>\n|^DESCRIPTION:\n(.|\n)*?(?=^FIELDS|\Z)|^\n",
        "the embedded server describes only the fields of built-in kinds that every object has",
    ),
)


def without_differences(command: str, text: str) -> str:
    """The text without the allowed differences."""
    for difference in DIFFERENCES:
        if re.match(difference.command, command):
            text = re.sub(difference.pattern, "", text, flags=re.MULTILINE)
    return text
