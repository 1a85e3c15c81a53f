"""CRDs of the machine provider: NodeDriver and DynamicSchema, and three kinds per driver, generated from its
DynamicSchema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from herder.api.capi.crds.definition import AGE, READY_COLUMNS, STATUS, column, condition_column
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
    with_description,
)
from herder.api.capi.names import CLUSTER_NAME
from herder.api.definitions import definition, root
from herder.api.machines.drivers.known import DRIVER_LABEL
from herder.api.machines.kinds import DYNAMIC_SCHEMA, NODE_DRIVER, kinds_of
from herder.engine.meta.kinds import Kind, Object

_PLAIN = string()
_INTEGER: Schema = {"type": "integer", "format": "int64"}
_CLUSTER = column("Cluster", ".metadata.labels['" + CLUSTER_NAME.replace(".", r"\.") + "']")


def _definition(
    kind: Kind,
    description: str,
    schema: Mapping[str, Schema],
    *,
    columns: Sequence[Object] = (),
    labels: Mapping[str, str] | None = None,
    subresources: Object | None = None,
) -> Object:
    return definition(kind, root(schema, description), columns=columns, labels=labels, subresources=subresources)


def _conditions(time: Schema) -> Schema:
    fields = {
        "type!": string("Name of the condition."),
        "status!": string("Whether the condition holds: True, False or Unknown."),
        "reason": string("Cause of the status, as one word for programs."),
        "message": string("Cause of the status, as text for users."),
        "lastUpdateTime": with_description(time, "When status, reason or message changed last."),
        "lastTransitionTime": with_description(time, "When the status changed last."),
    }
    return plain_list(record(fields), "What is known about the state of the object.")


# --- NodeDriver and DynamicSchema -----------------------------------------------------------------------------------

_DIGEST = string(
    "MD5, SHA-1, SHA-256 or SHA-512 digest of the download. The driver is downloaded again when it changes.",
    max=128,
    pattern="^$|^[a-fA-F0-9]{32,128}$",
)
_KNOWN_DIGEST = rule(
    "!has(self.checksum) || self.checksum.size() in [0, 32, 40, 64, 128]",
    "checksum must be an MD5, SHA-1, SHA-256 or SHA-512 digest in hexadecimal digits",
)
_NODE_DRIVER_SPEC = record(
    {
        "displayName": string("Name of the driver, from which its kinds are named.", max=57),
        "description": string("Purpose of the driver."),
        "active!": BOOLEAN | {"description": "Whether machines can be created with it."},
        "builtin": BOOLEAN | {"description": "Whether the driver is built into the machine CLI."},
        "addCloudCredential": BOOLEAN
        | {"description": "Whether cloud credentials exist for it even if it is inactive."},
        "url!": string("Download URL of the driver; local:// if it is built in."),
        "checksum": _DIGEST,
        "uiUrl": string("URL of a user interface for the driver; accepted for compatibility, not used."),
        "externalId": string("Accepted for compatibility, not used."),
        "whitelistDomains": plain_list(_PLAIN, "Accepted for compatibility, not used."),
    },
    "Desired state.",
) | {"x-kubernetes-validations": [_KNOWN_DIGEST]}

NODE_DRIVER_CRD = _definition(
    NODE_DRIVER,
    "A node driver. While it is active, kinds for its machines exist.",
    {
        "spec!": _NODE_DRIVER_SPEC,
        "status": record(
            {
                "appliedURL": string("URL from which the driver was downloaded."),
                "appliedChecksum": string("Digest of the downloaded driver."),
                "appliedDockerMachineVersion": string("Version of the machine CLI that reported the driver's flags."),
                "conditions": _conditions(TIME),
            },
            "Observed state.",
        ),
    },
    columns=(column("Activated", ".spec.active"), column("Binary URL", ".spec.url")),
)

_FIELD = record(
    {
        "type": string("One of string, password, boolean, int and array[string], or another schema."),
        "description": string("Purpose of the field, as the driver describes its flag."),
        "default": record(
            {
                "stringValue": string("Default of a string."),
                "intValue": with_description(_INTEGER, "Default of a number."),
                "boolValue": with_description(BOOLEAN, "Default of a boolean."),
                "stringSliceValue": plain_list(_PLAIN, "Default of a list.") | {"nullable": True},
            },
            "Default of the field, by type.",
        ),
        "nullable": with_description(BOOLEAN, "Whether the field can be null."),
        "required": with_description(BOOLEAN, "Whether the field must be set."),
        "create": with_description(BOOLEAN, "Whether the field can be set when the object is created."),
        "update": with_description(BOOLEAN, "Whether the field can be changed later."),
        "dynamicField": with_description(BOOLEAN, "Whether the field comes from a driver."),
    }
)

DYNAMIC_SCHEMA_CRD = _definition(
    DYNAMIC_SCHEMA,
    "Fields of a driver's machines or credentials, or the list of drivers.",
    {
        "spec!": record(
            {
                "embed": with_description(BOOLEAN, "Whether the fields belong to another schema."),
                "embedType": string("The schema that the fields belong to."),
                "resourceFields": {
                    "type": "object",
                    "additionalProperties": _FIELD | ANYTHING,
                    "description": "The fields by name.",
                },
            },
            "Desired state.",
        )
        | ANYTHING,
        "status": with_description(OPEN_OBJECT, "Observed state; not used."),
    },
    columns=(AGE,),
)

CRDS = (NODE_DRIVER_CRD, DYNAMIC_SCHEMA_CRD)


# --- kinds of a driver ----------------------------------------------------------------------------------------------

_TAINT = record(
    {
        "key!": string("Key of the taint."),
        "value": string("Value of the taint."),
        "effect!": string("Effect on pods: NoSchedule, PreferNoSchedule or NoExecute."),
        "timeAdded": with_description(TIME, "When the taint was added."),
    }
)
_COMMON = record(
    {
        "labels": string_map("Labels of the Node.") | {"nullable": True},
        "taints": plain_list(_TAINT) | {"nullable": True, "description": "Taints of the Node."},
        "cloudCredentialSecretName": string("Cloud credential Secret: its name, or cattle-global-data:name.", max=317)
        | {"nullable": True},
    },
    "Settings common to machines of all drivers.",
)
_PROVIDER_ID = string("Identifier of the machine at its provider; equal to the Node's providerID.") | {"nullable": True}
_FIELDS = "Fields of the driver, and settings common to all drivers."
_ADDRESS_TYPES = ("Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS")
_MACHINE_STATUS = record(
    {
        "conditions": _conditions(_PLAIN),
        "jobName": string("Job that creates or removes the machine."),
        "ready": with_description(BOOLEAN, "Whether the machine is ready, for clients of v1beta1."),
        "driverHash": string("Digest of the driver that created the machine."),
        "driverUrl": string("Download URL of the driver that created the machine."),
        "cloudCredentialSecretName": string("Cloud credential that the machine was created with."),
        "failureReason": string("Why the machine failed for good, as one word."),
        "failureMessage": string("Why the machine failed for good, as text."),
        "addresses": plain_list(
            record(
                {
                    "type!": string("Type of the address.", enum=_ADDRESS_TYPES),
                    "address!": string("Host name or IP address.", min=1, max=256),
                }
            ),
            "Addresses of the machine.",
        ),
        "initialization": record(
            {"provisioned": with_description(BOOLEAN, "Whether the machine has a provider ID.")},
            "Initialization steps that have completed; they are never reset.",
            filled=True,
        ),
    },
    "Observed state.",
)

_MACHINE_COLUMNS = (
    _CLUSTER,
    condition_column("Created", "CreateJob"),
    *READY_COLUMNS,
    column("ProviderID", ".spec.providerID", wide=True),
    column("Job", ".status.jobName", wide=True),
    AGE,
)


def driver_definitions(driver: str, fields: Mapping[str, Object]) -> tuple[Object, Object, Object]:
    """Return the definitions of config, template and machine.

    Only configs have defaults: the others are created from them, and unset fields are not passed to the driver.
    """
    kinds = kinds_of(driver)
    labels = {
        "cluster.x-k8s.io/v1beta1": kinds.machine.version,
        "cluster.x-k8s.io/v1beta2": kinds.machine.version,
        "auth.cattle.io/cluster-indexed": "true",
        DRIVER_LABEL: driver,
    }
    spec = record({**_properties(fields, defaults=False), "common": _COMMON, "providerID": _PROVIDER_ID}, _FIELDS)
    config = _definition(
        kinds.config,
        f"Configuration of machines of driver {driver}.",
        _properties(fields, defaults=True),
        columns=(AGE,),
        labels=labels,
    )
    template = _definition(
        kinds.template,
        f"Template of {kinds.machine.kind} objects.",
        {
            "spec!": record(
                {
                    "clusterName": string("Cluster that the template was created for."),
                    "template!": record({"metadata": METADATA, "spec!": spec}, "The machine to create."),
                },
                "Desired state.",
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
        f"{name}!" if field.get("required") else name: _property(name, field, defaults=defaults)
        for name, field in sorted(fields.items())
    }


def _property(name: str, field: Object, *, defaults: bool) -> Schema:
    type_ = field.get("type") or "string"
    schema = _TYPES.get(type_)
    if schema is None:
        raise UnusableField(f'type "{type_}" is not one of {", ".join(_TYPES)}')
    schema = dict(schema)
    schema["description"] = field.get("description") or f"Field {name} of the driver."
    if field.get("nullable"):
        schema["nullable"] = True
    default = (field.get("default") or {}).get(_DEFAULTS[type_])
    if defaults and default is not None:
        schema["default"] = default
    return schema


class UnusableField(ValueError):
    """A field of a DynamicSchema has an unsupported type."""


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
