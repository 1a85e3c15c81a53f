"""Schemas shared by several kinds of provisioned clusters."""

from __future__ import annotations

from herder.api.capi.crds.schema import BOOLEAN, INT_OR_STRING, Schema, int32, map_list, plain_list, record, string

PLAIN = string()
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "integer", "format": "int64"}


def nullable(schema: Schema) -> Schema:
    """Other clients write null for unset fields."""
    return {**schema, "nullable": True}


TEXT = nullable(PLAIN)
FLAG = BOOLEAN
OPTIONAL_FLAG = nullable(BOOLEAN)
SECRET_NAME = nullable(string(max=253))
CREDENTIAL = nullable(
    string("Cloud credential Secret of the machines: namespace:name, or a name in this namespace.", max=317)
)

COUNT_OR_PERCENT = nullable(
    string("A number or a percentage such as 25%.", max=10, pattern="^((([1-9]|[1-9][0-9]|100)%)|([1-9][0-9]*|0)|)$")
)
DURATION = nullable(
    string("A duration such as 90s, 10m or 1h30m.", pattern=r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$")
)
INT_OR_PERCENT = nullable(INT_OR_STRING)

REFERENCE = record(
    dict.fromkeys(("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"), PLAIN),
    atomic=True,
)

_CONDITION = record(
    {
        "type!": PLAIN,
        "status!": PLAIN,
        "reason": PLAIN,
        "message": PLAIN,
        "lastUpdateTime": PLAIN,
        "lastTransitionTime": PLAIN,
    }
)
CONDITIONS = map_list(["type"], _CONDITION)

ENDPOINT = record(
    {"host": string(min=1, max=512), "port": int32(min=1, max=65535)},
    "Address of the cluster's API server.",
    filled=True,
)

ADDRESSES = plain_list(
    record(
        {
            "type!": string(enum=["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]),
            "address!": string(min=1, max=256),
        }
    )
)


def initialization_step(step: str) -> Schema:
    return record({step: BOOLEAN}, "Initialization steps that have completed; they are never reset.", filled=True)
