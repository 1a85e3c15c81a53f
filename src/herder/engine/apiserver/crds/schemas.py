"""What is wrong with the schema of one version: the root's own rules here, the rest where schemas are compiled."""

from __future__ import annotations

from collections.abc import Iterator

from herder.engine.meta.errors import FieldError, forbidden_field, invalid_value
from herder.engine.meta.kinds import Object

# With a status subresource, a root may only say what is not lost when properties.status is taken out of it.
_ALLOWED_AT_ROOT = (
    "Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum",
    "MaxLength", "MinLength", "Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items",
    "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations",
)  # fmt: skip
_GO_NAMES = {
    "x-kubernetes-preserve-unknown-fields": "XPreserveUnknownFields",
    "x-kubernetes-validations": "XValidations",
}


def check_schema(schema: Object, path: str, *, has_status: bool) -> Iterator[FieldError]:
    from herder.engine.schema import check_structural

    root = f"{path}.openAPIV3Schema"
    if has_status:
        yield from _check_root(schema, root)
    if schema.get("nullable"):
        yield forbidden_field(f"{root}.nullable", "nullable cannot be true at the root")
    yield from check_structural(schema, root)


def _check_root(schema: Object, root: str) -> Iterator[FieldError]:
    if schema.get("type", "object") != "object":
        yield invalid_value(
            f"{root}.type",
            schema["type"],
            'only "object" is allowed as the type at the root of the schema if the status subresource is enabled',
        )
        return
    for field, value in schema.items():
        name = _GO_NAMES.get(field, field[:1].upper() + field[1:])
        if value not in (None, False, "", [], {}) and name not in _ALLOWED_AT_ROOT:
            told = f"only [{' '.join(_ALLOWED_AT_ROOT)}] fields are allowed at the root of the schema if the status "
            yield invalid_value(root, schema, f"{told}subresource is enabled")
            return
