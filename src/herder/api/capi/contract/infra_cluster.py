"""Read the infrastructure object of a Cluster, according to the provider contract."""

from __future__ import annotations

from herder.api.capi.contract import Contract, fields
from herder.api.capi.contract.fields import Endpoint, Failure
from herder.engine.meta.kinds import Object

READY = "Ready"


def provisioned(obj: Object, contract: Contract) -> bool:
    if contract is Contract.V1BETA1:
        return fields.flag(obj, "status", "ready")
    return fields.flag(obj, "status", "initialization", "provisioned")


def endpoint(obj: Object, _contract: Contract) -> Endpoint:
    return fields.endpoint(obj)


def failure_domains(obj: Object, contract: Contract) -> list[Object]:
    """Return the failure domains as Cluster.status has them: a list sorted by name, each with `controlPlane`."""
    path = ("status", "failureDomains")
    if contract is Contract.V1BETA1:
        domains = [{**(domain or {}), "name": name} for name, domain in fields.mapping(obj, *path).items()]
    else:
        domains = fields.objects(obj, *path)
    return [_domain(domain) for domain in sorted(domains, key=lambda domain: str(domain.get("name", "")))]


def failure(obj: Object, _contract: Contract) -> Failure:
    return fields.failure(obj)


def _domain(domain: Object) -> Object:
    entry: Object = {"name": domain.get("name", ""), "controlPlane": domain.get("controlPlane") is True}
    return entry | {"attributes": domain["attributes"]} if domain.get("attributes") else entry
