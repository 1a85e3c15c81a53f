"""The webhook configurations that make a real API server ask us, and where it finds us."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from herder.api.capi.core import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from herder.api.capi.inventory import PART_OF, US
from herder.engine.meta.kinds import Kind, Object
from herder.gateway.webhooks.reviews import ENDPOINTS, Endpoint

NAME = "herder-cluster-api"

# Finalizers, owners and the status change often and concern no rule: such writes are not held up by a call.
# (`is_concerned` is the same in Python, for servers that do not know these conditions.)
_CONCERNED = " || ".join(
    f"{path.format('object')} != {path.format('oldObject')}"
    for path in ("{}.?spec", "{}.metadata.?labels", "{}.metadata.?annotations")
)
_CONDITIONS = [{"name": "concerns-the-rules", "expression": f"request.operation != 'UPDATE' || {_CONCERNED}"}]


class Url(NamedTuple):
    """Outside the cluster: an address that its API servers can reach."""

    url: str

    @property
    def names(self) -> tuple[str, ...]:
        host = urlsplit(self.url).hostname
        if not self.url.startswith("https://") or not host:
            raise ValueError(f"{self.url}: not the address of an HTTPS server")
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


def configurations(place: Place, authorities_pem: bytes) -> list[Object]:
    """Both configurations, complete."""
    bundle = base64.b64encode(authorities_pem).decode()
    mutating = [endpoint for endpoint in ENDPOINTS.values() if endpoint.mutates]
    validating = [endpoint for endpoint in ENDPOINTS.values() if not endpoint.mutates]
    return [
        _configuration(MUTATING_WEBHOOKS, mutating, place, bundle),
        _configuration(VALIDATING_WEBHOOKS, validating, place, bundle),
    ]


def _configuration(kind: Kind, endpoints: Iterable[Endpoint], place: Place, bundle: str) -> Object:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": NAME, "labels": {PART_OF: US}},
        "webhooks": [_webhook(endpoint, place, bundle) for endpoint in endpoints],
    }


def _webhook(endpoint: Endpoint, place: Place, bundle: str) -> Object:
    kind = endpoint.kind
    return {
        "name": endpoint.name,
        "clientConfig": {**place.client(endpoint.path), "caBundle": bundle},
        "rules": [
            {
                "operations": ["CREATE", "UPDATE"],
                "apiGroups": [kind.group],
                "apiVersions": [kind.version],
                "resources": [kind.plural],
                "scope": "Namespaced",
            }
        ],
        "matchConditions": _CONDITIONS,
        "matchPolicy": "Equivalent",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
    }
