"""Read the infrastructure object of a Machine, according to the provider contract."""

from __future__ import annotations

from herder.api.capi.contract import Contract, fields
from herder.api.capi.contract.fields import Failure
from herder.engine.meta.kinds import Object

READY = "Ready"


def provisioned(obj: Object, contract: Contract) -> bool:
    if contract is Contract.V1BETA1:
        return fields.flag(obj, "status", "ready")
    return fields.flag(obj, "status", "initialization", "provisioned")


def provider_id(obj: Object, _contract: Contract) -> str:
    return fields.text(obj, "spec", "providerID")


def addresses(obj: Object, _contract: Contract) -> list[Object]:
    return fields.objects(obj, "status", "addresses")


def failure_domain(obj: Object, contract: Contract) -> str:
    """Return the machine's failure domain: in spec for v1beta1, in status for v1beta2."""
    return fields.text(obj, "spec" if contract is Contract.V1BETA1 else "status", "failureDomain")


def interruptible(obj: Object, _contract: Contract) -> bool:
    return fields.flag(obj, "status", "interruptible")


def failure(obj: Object, _contract: Contract) -> Failure:
    return fields.failure(obj)
