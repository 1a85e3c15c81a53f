"""Where kubectl may print something else on the two engines, and why. Everything else must be the same."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    command: str  # the commands it applies to, as a regular expression
    pattern: str  # what is left out of the comparison
    reason: str


DIFFERENCES = (
    Difference(
        r"version|get --raw /version|cluster-info",
        r"Server Version: .*|.*(gitVersion|gitCommit|goVersion|compiler|buildDate|platform|gitTreeState).*",
        "each server tells its own build; the embedded one adds +herder1 to the version it is compatible with",
    ),
    Difference(
        r"api-(versions|resources)",
        r"^(.* )?(?!\S*k8s\.io/)[\w-]+\.[\w.-]+/v\d.*\n|^[\w-]+\.(?!\S*k8s\.io$)[\w-]+\.[\w.-]+\n",
        "the embedded server is born with Herder's own kinds, and other tests define theirs",
    ),
    Difference(
        r"auth whoami",
        r"(?<=Username  ).*|(?<=credential-id  ).*",
        "each server's administrator has a name and a certificate of its own",
    ),
    Difference(
        r"describe configmaps",
        r"Name:  kube-root-ca\.crt(.|\n)*?---END CERTIFICATE---",
        "each server has an authority of its own, and describes it in words of its own",
    ),
    Difference(
        r"(describe|get) (persistentvolumeclaims|pvc)",
        r"^Finalizers:.*$",
        "the embedded server has no controllers for volumes: nobody would take the protection away again",
    ),
    Difference(
        r"describe node",
        r"^Taints:.*$",
        "nothing watches over nodes here, so none starts as not ready: its taint would stay for ever",
    ),
    Difference(
        r"apply .*--server-side|patch ",
        r"(?<=Error from server)( \(BadRequest\))?(?=: (failed to create typed|map: map|unknown patch type))",
        "a patch that does not fit its type is a bad request here; the real server takes the blame with a 500",
    ),
    Difference(
        r"patch .*--type=json",
        r"(?<=The request is invalid: ).*",
        "a JSON patch that cannot be applied is refused with the same code and reason, but told which operation failed",
    ),
    Difference(
        r"patch ",
        r"(?<=The request is invalid: patch: Invalid value: ).*",
        "a patch of the wrong type is refused with the same code and reason, but told which field it is about",
    ),
    Difference(
        r"patch pod",
        r"^(@@|[-+ ]).*\n|^changed: .*\n|^\n",
        "the embedded server names the fields of a pod that may not change, the real one prints both pods",
    ),
    Difference(
        r"get (flowschemas|prioritylevelconfigurations)",
        r"(.|\n)+",
        "there is no priority and fairness: requests share one process, and none of its defaults are there",
    ),
    Difference(
        r"get apiservices",
        r"(.|\n)+",
        "there are no aggregated servers, and no objects that stand for the groups that are served",
    ),
    Difference(
        r"get (componentstatuses|servicecidrs)",
        r"(.|\n)+",
        "what the real server is made of, and its bookkeeping of addresses, is not there",
    ),
    Difference(
        r"(attach|cp|exec|port-forward) ",
        r"(?<=unable to upgrade connection: ).*",
        "nobody can enter a pod here: the runner runs Jobs as plain processes",
    ),
    Difference(
        r"explain ",
        r"^ {2,}(?!.*<|enum:).*\n|^.*<(empty|no description)>\n|^DESCRIPTION:\n(.|\n)*?(?=^FIELDS|\Z)|^\n",
        "built-in kinds are described without the real server's prose",
    ),
)


def allowed(command: str, text: str) -> str:
    """The text without what may differ."""
    for difference in DIFFERENCES:
        if re.match(difference.command, command):
            text = re.sub(difference.pattern, "", text, flags=re.MULTILINE)
    return text
