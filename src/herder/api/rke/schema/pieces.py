"""Schemas shared by several kinds of provisioned clusters."""

from __future__ import annotations

from herder.api.capi.crds.schema import (
    BOOLEAN,
    INT_OR_STRING,
    Schema,
    int32,
    map_list,
    plain_list,
    record,
    string,
    with_description,
)

PLAIN = string()
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "integer", "format": "int64"}


def nullable(schema: Schema) -> Schema:
    """Other clients write null for unset fields."""
    return {**schema, "nullable": True}


SECRET_NAME = nullable(string(max=253))


def text(description: str) -> Schema:
    return nullable(string(description))


def flag(description: str) -> Schema:
    return with_description(BOOLEAN, description)


def optional_flag(description: str) -> Schema:
    return nullable(flag(description))


def integer(description: str) -> Schema:
    return with_description(INTEGER, description)


def number(description: str) -> Schema:
    return with_description(NUMBER, description)


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
    {
        "apiVersion": string("API version of the object."),
        "fieldPath": string("Not used."),
        "kind": string("Kind of the object."),
        "name": string("Name of the object."),
        "namespace": string("Not used: the object is in the namespace of the Cluster."),
        "resourceVersion": string("Not used."),
        "uid": string("Not used: the manager records the UID when it approves the reference."),
    },
    atomic=True,
)

_CONDITION = record(
    {
        "type!": string("Name of the condition."),
        "status!": string("Whether the condition holds: True, False or Unknown."),
        "reason": string("Cause of the status, as one word for programs."),
        "message": string("Cause of the status, as text for users."),
        "lastUpdateTime": string("When status, reason or message changed last."),
        "lastTransitionTime": string("When the status changed last."),
    }
)
CONDITIONS = map_list(["type"], _CONDITION, "What is known about the state of the object.")
OBSERVED_GENERATION = number("Generation of the spec that the status is about.")

ENDPOINT = record(
    {
        "host": string("Host name or IP address.", min=1, max=512),
        "port": int32("TCP port.", min=1, max=65535),
    },
    "Address of the cluster's API server.",
    filled=True,
)

ADDRESSES = plain_list(
    record(
        {
            "type!": string(
                "Type of the address.", enum=["Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"]
            ),
            "address!": string("Host name or IP address.", min=1, max=256),
        }
    ),
    "Addresses of the machine.",
)


def initialization_step(step: str, description: str) -> Schema:
    steps = {step: flag(description)}
    return record(steps, "Initialization steps that have completed; they are never reset.", filled=True)
