"""Read the bootstrap configuration object of a Machine, according to the provider contract."""

from __future__ import annotations

from herder.api.capi.contract import Contract, fields
from herder.api.capi.contract.fields import Failure
from herder.engine.meta.kinds import Object

READY = "Ready"


def data_secret_created(obj: Object, contract: Contract) -> bool:
    if contract is Contract.V1BETA1:
        return fields.flag(obj, "status", "ready")
    return fields.flag(obj, "status", "initialization", "dataSecretCreated")


def data_secret_name(obj: Object, _contract: Contract) -> str:
    return fields.text(obj, "status", "dataSecretName")


def failure(obj: Object, _contract: Contract) -> Failure:
    return fields.failure(obj)
