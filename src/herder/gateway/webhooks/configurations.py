"""The webhook configurations that make a real API server ask us, and where it finds us."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from herder.api.capi.core import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from herder.api.capi.inventory import PART_OF, US
from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.webhooks import drivers, reviews
from herder.gateway.webhooks.reviews import Endpoint


class Webhook(NamedTuple):
    name: str
    path: str
    kind: Kind
    operations: tuple[str, ...]
    concerns: str  # of updates, in CEL: others are not held up by a call
    only: str = "true"  # of all writes, in CEL


class Configuration(NamedTuple):
    """Webhooks that come and go together."""

    kind: Kind
    name: str
    webhooks: tuple[Webhook, ...]


# --- what we ask to be asked --------------------------------------------------------------------------------------

# Finalizers, owners and the status change often and concern no rule.
# (`is_concerned` is the same in Python, for servers that do not know these conditions.)
RULED = " || ".join(
    f"object.{path} != oldObject.{path}" for path in ("?spec", "metadata.?labels", "metadata.?annotations")
)


def _by_rules(endpoints: Iterable[Endpoint], *, mutating: bool) -> Iterator[Webhook]:
    for endpoint in endpoints:
        if endpoint.mutates is mutating:
            yield Webhook(endpoint.name, endpoint.path, endpoint.kind, ("CREATE", "UPDATE"), RULED)


CLUSTER_API_NAME = "herder-cluster-api"
CLUSTER_API = (
    Configuration(MUTATING_WEBHOOKS, CLUSTER_API_NAME, tuple(_by_rules(reviews.CLUSTER_API, mutating=True))),
    Configuration(VALIDATING_WEBHOOKS, CLUSTER_API_NAME, tuple(_by_rules(reviews.CLUSTER_API, mutating=False))),
)
"""Until our core stands aside."""

CLUSTERS_NAME = "herder-clusters"
CLUSTERS = (
    Configuration(MUTATING_WEBHOOKS, CLUSTERS_NAME, tuple(_by_rules(reviews.CLUSTERS, mutating=True))),
    Configuration(VALIDATING_WEBHOOKS, CLUSTERS_NAME, tuple(_by_rules(reviews.CLUSTERS, mutating=False))),
)

MACHINES_NAME = "herder-machines"
# What `takes_kinds_away` says, so that a driver can be switched on while nobody answers.
_TAKES_KINDS_AWAY = (
    "oldObject.?spec.?active.orValue(false) && !object.?spec.?active.orValue(false)"
    " || object.?spec.?displayName != oldObject.?spec.?displayName"
)
_DRIVERS = Webhook(drivers.NAME, drivers.PATH, NODE_DRIVER, ("UPDATE", "DELETE"), _TAKES_KINDS_AWAY)
MACHINES = (Configuration(VALIDATING_WEBHOOKS, MACHINES_NAME, (_DRIVERS,)),)


# --- where we are -------------------------------------------------------------------------------------------------


class Url(NamedTuple):
    """Outside the cluster: an address that its API servers can reach."""

    url: str

    @property
    def names(self) -> tuple[str, ...]:
        host = urlsplit(self.url).hostname
        if not self.url.startswith("https://") or not host:
            raise ValueError(f"{self.url} is not an https URL, such as https://HOST:PORT")
        return (host,)

    def client(self, path: str) -> Object:
        return {"url": self.url.rstrip("/") + path}


class Service(NamedTuple):
    """Inside the cluster: a Service of the pods that we run in."""

    namespace: str
    name: str
    port: int = 443

    @property
    def names(self) -> tuple[str, ...]:
        base = f"{self.name}.{self.namespace}.svc"
        return base, f"{base}.cluster.local"

    def client(self, path: str) -> Object:
        return {"service": {"namespace": self.namespace, "name": self.name, "port": self.port, "path": path}}


Place = Url | Service


# --- as objects ---------------------------------------------------------------------------------------------------


def rendered(configuration: Configuration, place: Place, authorities_pem: bytes) -> Object:
    bundle = base64.b64encode(authorities_pem).decode()
    return {
        "apiVersion": configuration.kind.api_version,
        "kind": configuration.kind.kind,
        "metadata": {"name": configuration.name, "labels": {PART_OF: US}},
        "webhooks": [_webhook(webhook, place, bundle) for webhook in configuration.webhooks],
    }


def _webhook(webhook: Webhook, place: Place, bundle: str) -> Object:
    kind = webhook.kind
    return {
        "name": webhook.name,
        "clientConfig": {**place.client(webhook.path), "caBundle": bundle},
        "rules": [
            {
                "operations": list(webhook.operations),
                "apiGroups": [kind.group],
                "apiVersions": [kind.version],
                "resources": [kind.plural],
                "scope": "Namespaced" if kind.namespaced else "Cluster",
            }
        ],
        "matchConditions": [
            {"name": "concerns-the-rules", "expression": f"request.operation != 'UPDATE' || {webhook.concerns}"},
            *([{"name": "only", "expression": webhook.only}] if webhook.only != "true" else []),
        ],
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
