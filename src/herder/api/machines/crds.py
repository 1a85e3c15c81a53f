"""The kinds of the machine provider as CustomResourceDefinitions: two that are always there, and three for each driver,
made from the fields of its DynamicSchema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import AGE, STATUS, column, condition_column
from herder.api.capi.crds.pieces import METADATA
from herder.api.capi.crds.schema import (
    ANYTHING,
    BOOLEAN,
    OPEN_OBJECT,
    TIME,
    Schema,
    plain_list,
    record,
    rule,
    string,
    string_map,
)
from herder.api.capi.names import CLUSTER_NAME
from herder.api.definitions import definition, root
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.api.machines.known import DRIVER_LABEL
from herder.engine.meta.kinds import Kind, Object

_PLAIN = string()
_INTEGER: Schema = {"type": "integer", "format": "int64"}
_CLUSTER = column("Cluster", ".metadata.labels['" + CLUSTER_NAME.replace(".", r"\.") + "']")


def _definition(
    kind: Kind,
    described: str,
    schema: Mapping[str, Schema],
    *,
    columns: Sequence[Object] = (),
    labels: Mapping[str, str] | None = None,
    subresources: Object | None = None,
) -> Object:
    return definition(kind, root(schema, described), columns=columns, labels=labels, subresources=subresources)


def _conditions(time: Schema) -> Schema:
    fields = {"type!": _PLAIN, "status!": _PLAIN, "reason": _PLAIN, "message": _PLAIN}
    return plain_list(record({**fields, "lastUpdateTime": time, "lastTransitionTime": time}))


# --- always there ---------------------------------------------------------------------------------------------------

_DIGEST = string(
    "Of what the URL leads to: an MD5, SHA-1, SHA-256 or SHA-512 digest. The driver is fetched again when it changes.",
    max=128,
    pattern="^$|^[a-fA-F0-9]{32,128}$",
)
_KNOWN_DIGEST = rule(
    "!has(self.checksum) || self.checksum.size() in [0, 32, 40, 64, 128]",
    "checksum must be an MD5, SHA-1, SHA-256 or SHA-512 digest in hexadecimal digits",
)
_NODE_DRIVER_SPEC = record(
    {
        "displayName": string("The driver's name, after which its kinds are named.", max=57),
        "description": _PLAIN,
        "active!": BOOLEAN | {"description": "Whether machines can be made with it."},
        "builtin": BOOLEAN | {"description": "Whether the machine program has it itself."},
        "addCloudCredential": BOOLEAN | {"description": "Whether there are cloud credentials for it, active or not."},
        "url!": string("Where the driver is downloaded from; local:// where the machine program has it itself."),
        "checksum": _DIGEST,
        "uiUrl": _PLAIN,
        "externalId": _PLAIN,
        "whitelistDomains": plain_list(_PLAIN),
    }
) | {"x-kubernetes-validations": [_KNOWN_DIGEST]}

NODE_DRIVER_CRD = _definition(
    NODE_DRIVER,
    "A way to make machines at one provider. While it is active, there are kinds for its machines.",
    {
        "spec!": _NODE_DRIVER_SPEC,
        "status": record(
            {
                "appliedURL": _PLAIN,
                "appliedChecksum": _PLAIN,
                "appliedDockerMachineVersion": string("The machine program that the driver's flags are from."),
                "conditions": _conditions(TIME),
            }
        ),
    },
    columns=(column("Activated", ".spec.active"), column("Binary URL", ".spec.url")),
)

_FIELD = record(
    {
        "type": string("string, password, boolean, int, array[string], or the name of another schema"),
        "description": _PLAIN,
        "default": record(
            {
                "stringValue": _PLAIN,
                "intValue": _INTEGER,
                "boolValue": BOOLEAN,
                "stringSliceValue": plain_list(_PLAIN) | {"nullable": True},
            }
        ),
        "nullable": BOOLEAN,
        "required": BOOLEAN,
        "create": BOOLEAN,
        "update": BOOLEAN,
        "dynamicField": BOOLEAN,
    }
)

DYNAMIC_SCHEMA_CRD = _definition(
    DYNAMIC_SCHEMA,
    "Fields that are known only at run time: those of a driver's machines or credentials, or which drivers there are.",
    {
        "spec!": record(
            {
                "embed": BOOLEAN,
                "embedType": _PLAIN,
                "resourceFields": {"type": "object", "additionalProperties": _FIELD | ANYTHING},
            }
        )
        | ANYTHING,
        "status": OPEN_OBJECT,
    },
    columns=(AGE,),
)

CRDS = (NODE_DRIVER_CRD, DYNAMIC_SCHEMA_CRD)


# --- of a driver ----------------------------------------------------------------------------------------------------

_TAINT = record({"key!": _PLAIN, "value": _PLAIN, "effect!": _PLAIN, "timeAdded": TIME})
_COMMON = record(
    {
        "labels": string_map("Labels that the Node gets.") | {"nullable": True},
        "taints": plain_list(_TAINT) | {"nullable": True, "description": "Taints that the Node gets."},
        "cloudCredentialSecretName": string(
            "The Secret that lets us in at the provider: its name, or cattle-global-data:name.", max=317
        )
        | {"nullable": True},
    },
    "What machines of every driver can be told.",
)
_PROVIDER_ID = string("The machine's name at its provider; its Node carries the same.") | {"nullable": True}
_ADDRESS_TYPES = ("Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS")
_MACHINE_STATUS = record(
    {
        "conditions": _conditions(_PLAIN),
        "jobName": string("The Job that makes or removes the machine."),
        "ready": BOOLEAN,
        "driverHash": string("The digest of the driver that made the machine."),
        "driverUrl": string("Where the driver was downloaded from that made the machine."),
        "cloudCredentialSecretName": string("The credential that the machine was made with."),
        "failureReason": _PLAIN,
        "failureMessage": _PLAIN,
        "addresses": plain_list(
            record({"type!": string(enum=_ADDRESS_TYPES), "address!": string(min=1, max=256)}),
        ),
        "initialization": record({"provisioned": BOOLEAN}, "Steps that are done once.", filled=True),
    }
)

_MACHINE_COLUMNS = (
    _CLUSTER,
    condition_column("Created", "CreateJob"),
    condition_column("Ready", "Ready"),
    column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    column("ProviderID", ".spec.providerID", wide=True),
    column("Job", ".status.jobName", wide=True),
    AGE,
)


def driver_definitions(driver: str, fields: Mapping[str, Object]) -> tuple[Object, Object, Object]:
    """Its configuration, template and machine. Only configurations have defaults: the others are made from them, and
    what they do not say is not said to the driver."""
    kinds = kinds_of(driver)
    labels = {
        "cluster.x-k8s.io/v1beta1": kinds.machine.version,
        "cluster.x-k8s.io/v1beta2": kinds.machine.version,
        "auth.cattle.io/cluster-indexed": "true",
        DRIVER_LABEL: driver,
    }
    spec = record({**_properties(fields, defaults=False), "common": _COMMON, "providerID": _PROVIDER_ID})
    config = _definition(
        kinds.config,
        f"How machines of driver {driver} are to be.",
        _properties(fields, defaults=True),
        columns=(AGE,),
        labels=labels,
    )
    template = _definition(
        kinds.template,
        f"What {kinds.machine.kind} objects are made from.",
        {
            "spec!": record(
                {
                    "clusterName": string("The cluster that the template was made for."),
                    "template!": record({"metadata": METADATA, "spec!": spec}),
                }
            )
        },
        columns=(column("Cluster", ".spec.clusterName"), AGE),
        labels=labels,
    )
    machine = _definition(
        kinds.machine,
        f"A machine of driver {driver}.",
        {"spec": spec, "status": _MACHINE_STATUS},
        columns=_MACHINE_COLUMNS,
        labels=labels,
        subresources=STATUS,
    )
    return config, template, machine


def _properties(fields: Mapping[str, Object], *, defaults: bool) -> dict[str, Schema]:
    return {
        f"{name}!" if field.get("required") else name: _property(field, defaults=defaults)
        for name, field in sorted(fields.items())
    }


def _property(field: Object, *, defaults: bool) -> Schema:
    type_ = field.get("type") or "string"
    schema = _TYPES.get(type_)
    if schema is None:
        raise UnusableField(f'type "{type_}" is not one of {", ".join(_TYPES)}')
    schema = dict(schema)
    if field.get("description"):
        schema["description"] = field["description"]
    if field.get("nullable"):
        schema["nullable"] = True
    default = (field.get("default") or {}).get(_DEFAULTS[type_])
    if defaults and default is not None:
        schema["default"] = default
    return schema


class UnusableField(ValueError):
    """A field of a DynamicSchema that no kind can have."""


_NULLABLE: Schema = {"type": "string", "nullable": True}
_TYPES: dict[str, Schema] = {
    "string": _NULLABLE,
    "password": _NULLABLE,
    "boolean": {"type": "boolean"},
    "int": {"type": "integer"},
    "array[string]": {"type": "array", "nullable": True, "items": _NULLABLE},
}
_DEFAULTS = {
    "string": "stringValue",
    "password": "stringValue",
    "boolean": "boolValue",
    "int": "intValue",
    "array[string]": "stringSliceValue",
}
