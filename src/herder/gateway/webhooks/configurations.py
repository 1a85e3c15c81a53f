"""Webhook configurations for a real API server, and the address of our webhook server."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from herder.api.capi.core import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from herder.api.capi.inventory import PART_OF, US
from herder.api.machines.kinds import NODE_DRIVER
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.webhooks import node_driver_review, reviews
from herder.gateway.webhooks.reviews import Endpoint


class Webhook(NamedTuple):
    """One webhook."""

    name: str
    path: str
    kind: Kind
    operations: tuple[str, ...]
    concerns: str  # CEL match condition for updates; others cause no call
    only: str = "true"  # CEL match condition for all writes


class Configuration(NamedTuple):
    """Webhooks that are installed and removed together."""

    kind: Kind
    name: str
    webhooks: tuple[Webhook, ...]


# --- webhooks -------------------------------------------------------------------------------------------------------

# Finalizers, owners and status change often and concern no rule. (`is_concerned` is the same in Python, for servers
# without match conditions.)
RULED = " || ".join(
    f"object.{path} != oldObject.{path}" for path in ("?spec", "metadata.?labels", "metadata.?annotations")
)


def _webhooks(endpoints: Iterable[Endpoint], *, mutating: bool) -> Iterator[Webhook]:
    for endpoint in endpoints:
        if endpoint.mutates is mutating:
            yield Webhook(endpoint.name, endpoint.path, endpoint.kind, ("CREATE", "UPDATE"), RULED)


CLUSTER_API_NAME = "herder-cluster-api"
CLUSTER_API = (
    Configuration(MUTATING_WEBHOOKS, CLUSTER_API_NAME, tuple(_webhooks(reviews.CLUSTER_API, mutating=True))),
    Configuration(VALIDATING_WEBHOOKS, CLUSTER_API_NAME, tuple(_webhooks(reviews.CLUSTER_API, mutating=False))),
)
"""Installed while our Cluster API core is enabled."""

CLUSTERS_NAME = "herder-clusters"
CLUSTERS = (
    Configuration(MUTATING_WEBHOOKS, CLUSTERS_NAME, tuple(_webhooks(reviews.CLUSTERS, mutating=True))),
    Configuration(VALIDATING_WEBHOOKS, CLUSTERS_NAME, tuple(_webhooks(reviews.CLUSTERS, mutating=False))),
)

MACHINES_NAME = "herder-machines"
# Same as `removes_kinds`, so that a driver can be activated while no webhook server answers.
_REMOVES_KINDS = (
    "oldObject.?spec.?active.orValue(false) && !object.?spec.?active.orValue(false)"
    " || object.?spec.?displayName != oldObject.?spec.?displayName"
)
_DRIVERS = Webhook(node_driver_review.NAME, node_driver_review.PATH, NODE_DRIVER, ("UPDATE", "DELETE"), _REMOVES_KINDS)
MACHINES = (Configuration(VALIDATING_WEBHOOKS, MACHINES_NAME, (_DRIVERS,)),)


# --- addresses ------------------------------------------------------------------------------------------------------


class Url(NamedTuple):
    """Outside the cluster: a URL that API servers can reach."""

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
    """Inside the cluster: a Service of our pods."""

    namespace: str
    name: str
    port: int = 443

    @property
    def names(self) -> tuple[str, ...]:
        base = f"{self.name}.{self.namespace}.svc"
        return base, f"{base}.cluster.local"

    def client(self, path: str) -> Object:
        return {"service": {"namespace": self.namespace, "name": self.name, "port": self.port, "path": path}}


WebhookAddress = Url | Service


# --- objects --------------------------------------------------------------------------------------------------------


def rendered(configuration: Configuration, address: WebhookAddress, authorities_pem: bytes) -> Object:
    bundle = base64.b64encode(authorities_pem).decode()
    return {
        "apiVersion": configuration.kind.api_version,
        "kind": configuration.kind.kind,
        "metadata": {"name": configuration.name, "labels": {PART_OF: US}},
        "webhooks": [_webhook(webhook, address, bundle) for webhook in configuration.webhooks],
    }


def _webhook(webhook: Webhook, address: WebhookAddress, bundle: str) -> Object:
    kind = webhook.kind
    return {
        "name": webhook.name,
        "clientConfig": {**address.client(webhook.path), "caBundle": bundle},
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
