"""Schemas and values for which a real kube-apiserver and this package must agree.

Each case is one property of the `spec` of a custom resource, so that a single CustomResourceDefinition holds them all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Json = Any


class Case(NamedTuple):
    schema: dict[str, Json]
    value: Json
    old: Json = None  # for updates: the old value, stored while the schema was still `loose`


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


def obj(properties: dict[str, Json], **more: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, **more}


def array(items: dict[str, Json], **more: Json) -> dict[str, Json]:
    return {"type": "array", "items": items, **more}


INT_OR_STRING = {"x-kubernetes-int-or-string": True}
EMBEDDED = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
KEYED = array(obj({"name": STRING, "port": INTEGER}, required=["name"]), **{
    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})  # fmt: skip
TWICE_KEYED = array(obj({"a": STRING, "b": {"type": "integer", "default": 7}}, required=["a"]), **{
    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]})  # fmt: skip
SET = array(STRING, **{"x-kubernetes-list-type": "set"})

CREATE: dict[str, Case] = {
    "stringForInteger": Case(INTEGER, "x"),
    "integerForString": Case(STRING, 5),
    "booleanForString": Case(STRING, True),
    "objectForString": Case(STRING, {"a": 1}),
    "arrayForObject": Case(obj({}), [1]),
    "objectForArray": Case(array(STRING), {}),
    "stringForBoolean": Case(BOOLEAN, "true"),
    "integerForNumber": Case(NUMBER, 3),
    "fractionForInteger": Case(INTEGER, 1.5),
    "wholeFloatForInteger": Case(INTEGER, 2.0),
    "hugeForInteger": Case(INTEGER, 10**19),
    "tooBigForInt32": Case({"type": "integer", "format": "int32"}, 2**31),
    "booleanForInt32": Case({"type": "integer", "format": "int32"}, True),
    "stringForInt32": Case({"type": "integer", "format": "int32"}, "x"),
    "tooBigForFloat": Case({"type": "number", "format": "float"}, 1e39),
    "nullItem": Case(array(STRING), ["a", None]),
    "nullNullableItem": Case(array({"type": "string", "nullable": True}), [None]),
    "nullEnum": Case(array({"type": "string", "nullable": True, "enum": ["a"]}), [None]),
    "required": Case(obj({"a": STRING, "b": STRING}, required=["a", "b"]), {"a": "x"}),
    "requiredDeep": Case(array(obj({"a": STRING}, required=["a"])), [{}, {"a": "x"}, {}]),
    "enum": Case({"type": "string", "enum": ["a", "b c", 'q"q']}, "z"),
    "enumOfIntegers": Case({"type": "integer", "enum": [1, 2]}, 3),
    "enumTruncates": Case({"type": "number", "enum": [1, 2]}, 1.5),
    "enumOfObjects": Case({"type": "object", "enum": [{"a": 1}], "properties": {"a": INTEGER}}, {"a": 2}),
    "minimum": Case({"type": "integer", "minimum": 3}, 2),
    "minimumExclusive": Case({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 3),
    "maximum": Case({"type": "integer", "maximum": 3}, 4),
    "maximumExclusive": Case({"type": "integer", "maximum": 3, "exclusiveMaximum": True}, 3),
    "maximumOfNumber": Case({"type": "number", "maximum": 1000000}, 1000000.5),
    "minimumOfNumber": Case({"type": "number", "minimum": 0.5}, 0.25),
    "fractionalBound": Case({"type": "integer", "maximum": 2.5}, 3),
    "multipleOf": Case({"type": "integer", "multipleOf": 3}, 4),
    "multipleOfNumber": Case({"type": "number", "multipleOf": 0.1}, 0.35),
    "multipleOfNumberFits": Case({"type": "number", "multipleOf": 0.1}, 0.3),
    "maxLength": Case({"type": "string", "maxLength": 3}, "éééé"),
    "maxLengthFits": Case({"type": "string", "maxLength": 3}, "ééé"),
    "maxLengthOne": Case({"type": "string", "maxLength": 1}, "xy"),
    "minLength": Case({"type": "string", "minLength": 3}, "ab"),
    "pattern": Case({"type": "string", "pattern": "^[a-z]+$"}, "A\tb"),
    "patternUnanchored": Case({"type": "string", "pattern": "b+"}, "abbc"),
    "patternNeedsLinearTime": Case({"type": "string", "pattern": "^(a+)+$"}, "a" * 60 + "b"),
    "patternFinalNewline": Case({"type": "string", "pattern": "^a$"}, "a\n"),
    "patternFold": Case({"type": "string", "pattern": "(?i)^stra\\x{df}e\\pL$"}, "STRAßEx"),
    "maxItems": Case(array(INTEGER, maxItems=1), [1, 2]),
    "minItems": Case(array(INTEGER, minItems=2), [1]),
    "maxProperties": Case({"type": "object", "additionalProperties": STRING, "maxProperties": 1}, {"a": "", "b": ""}),
    "minProperties": Case({"type": "object", "additionalProperties": STRING, "minProperties": 1}, {}),
    "wrongMapValue": Case({"type": "object", "additionalProperties": INTEGER}, {"a.b/c": "x"}),
    "closedMap": Case({"type": "object", "additionalProperties": False}, {"a": "x"}),
    "intOrStringWrong": Case(INT_OR_STRING, 1.5),
    "intOrStringBoolean": Case(INT_OR_STRING, True),
    "intOrStringFits": Case(array(INT_OR_STRING), [1, "25%"]),
    "intOrStringPattern": Case({**INT_OR_STRING, "anyOf": [INTEGER, STRING], "pattern": "^a"}, "b"),
    "anyOf": Case(obj({"a": INTEGER, "b": STRING}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]), {}),
    "anyOfBest": Case(obj({"a": INTEGER, "b": STRING}, anyOf=[
        {"required": ["a"], "properties": {"a": {"minimum": 5}}}, {"required": ["b"]}]), {"a": 1}),
    "anyOfFits": Case(obj({"a": INTEGER, "b": STRING}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]), {"b": "x"}),
    "oneOfNone": Case(obj({"a": INTEGER, "b": STRING}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]), {}),
    "oneOfBoth": Case(obj({"a": INTEGER, "b": STRING}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
                      {"a": 1, "b": "x"}),
    "allOfSome": Case({"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^a"}]}, "b"),
    "allOfOne": Case({"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^a"}]}, "bb"),
    "not": Case({"type": "string", "not": {"enum": ["x"]}}, "x"),
    "notFits": Case({"type": "string", "not": {"enum": ["x"]}}, "y"),
    "formatWithoutType": Case(obj({"a": ANYTHING}, anyOf=[{"properties": {"a": {"format": "date"}}}]), {"a": 5}),
    "arrayForFormattedString": Case({"type": "string", "format": "date"}, ["x"]),
    "integerForFormattedString": Case({"type": "string", "format": "date"}, 5),
    "booleanForFormattedString": Case({"type": "string", "format": "date"}, True),
    "unknownFormat": Case({"type": "string", "format": "nonsense"}, "whatever"),
    "set": Case(SET, ["a", "b", "a", "a", "b"]),
    "setOfIntegers": Case(array(INTEGER, **{"x-kubernetes-list-type": "set"}), [1, 2, 1]),
    "setOfObjects": Case(array(obj({"a": STRING}, **{"x-kubernetes-map-type": "atomic"}),
                               **{"x-kubernetes-list-type": "set"}), [{"a": "<x>"}, {"a": "<x>"}]),
    "keyed": Case(KEYED, [{"name": "a", "port": 1}, {"name": "b"}, {"name": "a", "port": 2}]),
    "keyedTwice": Case(TWICE_KEYED, [{"a": "x"}, {"a": "x", "b": 7}, {"a": "x", "b": 8}]),
    "keyedNull": Case(KEYED, [None, {"name": "a"}]),
    "embeddedEmpty": Case(EMBEDDED, {}),
    "embeddedWrong": Case(EMBEDDED, {"apiVersion": "a/b/c", "kind": "No_Good", "metadata": {"name": "a/b"}}),
    "embeddedLabels": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "labels": {"-bad": "x y"}, "annotations": {"-a": ""}, "finalizers": ["a b"], "namespace": "UPPER"}}),
    "embeddedOwner": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {"ownerReferences": [{}]}}),
    "embeddedFits": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "anything": [1]}),
    "odd\"name": Case(INTEGER, "x\u0001\u00a0\"<&>"),
}  # fmt: skip

FORMATS: dict[str, list[str]] = {
    "bsonobjectid": ["507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901", "zzzf1f77bcf86cd799439011"],
    "uri": ["http://a.b/c", "/x", "x", "a b", "http://a:b/", "mailto:a@b", "http://[::1]:80/", "http://a/%zz", "*", "",
            "http://a b/", "urn:x:y", "http://u:p@h/", "//a/b", "1http://x"],
    "email": ["a@b.c", "A B <a@b>", "x", "a@", "@b", '"a b"@c', "a@b, c@d", "a..b@c", "a@b (x)", "  a@b",
              "<a@b>", "a b@c", "a@[1.2.3.4]"],
    "hostname": ["a.example.com", "-a", "a_b", "localhost", "a.b.c1", "é.com", "a" * 64, "", "1.2.3.4", "a-.b.com"],
    "ipv4": ["1.2.3.4", "01.2.3.4", "1.2.3", "1.2.3.256", "::ffff:1.2.3.4", "a.b.c.d", "1.2.3.4 ",
             "1000000000255.2.3.4", "0000255.2.3.4"],
    "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "1.2.3.4", "::ffff:1.2.3.4", "1::2::3", "fe80::1%eth0", "1:2:3:4:5:6:7",
             ":1"],
    "cidr": ["10.0.0.0/8", "10.0.0.0", "10.0.0.0/33", "::/0", "::/129", "010.0.0.0/8", "1.2.3.4/a", "1.2.3.4/08"],
    "mac": ["00:11:22:33:44:55", "00-11-22-33-44-55", "0011.2233.4455", "00:11:22:33:44", "00:11:22:33:44:5g",
            "02:00:5e:10:00:00:00:01"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000", "123"],
    "uuid3": ["123e4567-e89b-32d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174000"],
    "uuid4": ["123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-42d3-c456-426614174000"],
    "uuid5": ["123e4567-e89b-52d3-a456-426614174000", "123e4567-e89b-42d3-a456-426614174000"],
    "isbn": ["0321751043", "978-0321751041", "0321751044"],
    "isbn10": ["0321751043", "978-0321751041", "080442957X"],
    "isbn13": ["0321751043", "978-0321751041", "978-0321751042"],
    "creditcard": ["4111 1111 1111 1111", "4111 1111 1111 1112", "x"],
    "ssn": ["123-45-6789", "123456789", "123 45 6789", "123-45-678x"],
    "hexcolor": ["#FFFFFF", "fff", "#ffff", "#ggg"],
    "rgbcolor": ["rgb(255,255,255)", "rgb( 1 , 2,3 )", "rgb(256,0,0)", "rgb(1,2)"],
    "byte": ["aGVsbG8=", "", "a", "aGVsbG8", "aGVs", "a-_="],
    "password": ["anything"],
    "date": ["2006-01-02", "2006-13-02", "2006-02-30", "2006-1-2", "0000-02-29", "2006-01-02 "],
    "date-time": ["2014-12-15T19:30:20.000Z", "2014-12-15T19:30:20Z", "2014-12-15t19:30:20z", "2014-12-15 19:30:20Z",
                  "2014-12-15T24:30:20Z", "2014-12-15T19:30:20+02:00", "2014-12-15T19:30:20", "2014-12-15T19:30:60Z",
                  "2014-12-15T19:30:20Ztail"],
    "datetime": ["2014-12-15T19:30:20Z", "x"],
    "duration": ["1h30m", "22 ns", "3 weeks", "1", "0", "-1.5h", "5 parsecs", "", "1d", "10 Hours", ".5s", "1µs",
                 "x1s", "12 3 weeks", "99999999999999999999 weeks", "1.h", "1..2h", "12"],
    "k8s-short-name": ["abc", "Abc", "-a", "a" * 64, "a.b"],
    "k8s-long-name": ["abc", "a.b", "a..b", "A.b", "a" * 254],
}  # fmt: skip
for _format, _values in FORMATS.items():
    for _index, _value in enumerate(_values):
        CREATE[f"format {_format} {_index}"] = Case({"type": "string", "format": _format}, _value)

STRICT_INTEGER = {"type": "integer", "minimum": 10}
UPDATE: dict[str, Case] = {
    "unchangedIsTolerated": Case(STRICT_INTEGER, 5, 5),
    "changedIsNot": Case(STRICT_INTEGER, 6, 5),
    "unchangedSibling": Case(obj({"a": STRICT_INTEGER, "b": STRING}), {"a": 5, "b": "y"}, {"a": 5, "b": "x"}),
    "unchangedWrongType": Case(obj({"a": STRING, "b": STRING}), {"a": 5, "b": "y"}, {"a": 5, "b": "x"}),
    "missingStaysRequired": Case(obj({"a": STRING, "b": STRING}, required=["a"]), {"b": "y"}, {"b": "x"}),
    "missingAndUnchanged": Case(obj({"a": STRING, "b": STRING}, required=["a"]), {"b": "x"}, {"b": "x"}),
    "keyedItemUnchanged": Case(
        array(obj({"name": STRING, "n": STRICT_INTEGER}, required=["name"]), **{
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        [{"name": "new", "n": 11}, {"name": "a", "n": 1}], [{"name": "a", "n": 1}]),
    "keyedItemChanged": Case(
        array(obj({"name": STRING, "n": STRICT_INTEGER}, required=["name"]), **{
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        [{"name": "a", "n": 2}], [{"name": "a", "n": 1}]),
    "keyedReordered": Case(
        array(obj({"name": STRING, "n": STRICT_INTEGER}, required=["name"]), maxItems=1, **{
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        [{"name": "b", "n": 2}, {"name": "a", "n": 1}], [{"name": "a", "n": 1}, {"name": "b", "n": 2}]),
    "atomicItemUnchanged": Case(array(STRICT_INTEGER), [1, 20], [1]),
    "atomicUnchanged": Case(array(STRICT_INTEGER), [1], [1]),
    "mapValueUnchanged": Case({"type": "object", "additionalProperties": STRICT_INTEGER}, {"a": 1, "b": 20}, {"a": 1}),
    "mapValueChanged": Case({"type": "object", "additionalProperties": STRICT_INTEGER}, {"a": 2}, {"a": 1}),
    "insideAllOf": Case(obj({"a": INTEGER, "b": STRING}, allOf=[{"properties": {"a": {"minimum": 5}}}]),
                        {"a": 1, "b": "y"}, {"a": 1, "b": "x"}),
    "anyOfUnchangedField": Case(obj({"a": INTEGER, "b": STRING}, anyOf=[{"properties": {"a": {"minimum": 5}}}]),
                                {"a": 1, "b": "y"}, {"a": 1, "b": "x"}),
    "setDuplicatesStay": Case(SET, ["a", "a", "b"], ["a", "a"]),
}  # fmt: skip

WITH_DEFAULTS = obj({
    "a": {"type": "string", "default": "x"},
    "n": {"type": "integer", "default": 3, "nullable": True},
    "inner": obj({"b": {"type": "boolean", "default": False}}, default={}),
    "lazy": obj({"b": {"type": "boolean", "default": True}}),
})  # fmt: skip

NORMALIZE: dict[str, Case] = {
    "unknown": Case(obj({"a": STRING, "b": obj({"c": STRING})}), {"a": "x", "z": 1, "b": {"c": "", "y": {}}}),
    "unknownInItems": Case(array(obj({"a": STRING})), [{"a": "x"}, {"b": 1}, {"a": "y", "c": [1]}]),
    "unknownInMap": Case({"type": "object", "additionalProperties": obj({"a": STRING})}, {"k.x": {"a": "", "b": 1}}),
    "preserved": Case({**obj({"a": obj({"b": STRING})}), **ANYTHING}, {"x": {"y": 1}, "a": {"b": "", "z": 1}}),
    "preservedItems": Case({**array(obj({"a": STRING})), **ANYTHING}, [{"a": "", "b": 1}]),
    "freeForm": Case({"type": "object", "additionalProperties": True}, {"a": {"b": 1}, "c": [{"d": 1}], "e": 1}),
    "objectWithoutProperties": Case({"type": "object"}, {"a": 1}),
    "objectForScalar": Case(obj({"a": STRING}), {"a": "x"}),
    "nullDropped": Case(obj({"a": STRING, "b": {"type": "string", "nullable": True}}), {"a": None, "b": None}),
    "nullInPreserved": Case({**obj({"a": STRING}), **ANYTHING}, {"a": None, "x": None}),
    "nullInMap": Case({"type": "object", "additionalProperties": STRING}, {"a": None, "b": "x"}),
    "defaults": Case(WITH_DEFAULTS, {}),
    "defaultsForNull": Case(WITH_DEFAULTS, {"a": None, "n": None, "inner": None, "lazy": {}}),
    "defaultsInItems": Case(array(WITH_DEFAULTS), [{}, {"a": "y", "inner": {"b": True}}]),
    "defaultsInMap": Case({"type": "object", "additionalProperties": WITH_DEFAULTS}, {"k": {}}),
    "defaultsInPreserved": Case({**WITH_DEFAULTS, **ANYTHING}, {"x": {}}),
    "defaultOfItems": Case(array({"type": "string", "default": "d"}), ["x", None]),
    "embedded": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "extra": {"x": 1}, "metadata": {
        "name": "x", "foo": 1, "labels": {"a": "b"}, "ownerReferences": [
            {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "u", "bar": 1}]}}),
    "embeddedPruned": Case({"type": "object", "x-kubernetes-embedded-resource": True,
                            "properties": {"spec": obj({"a": STRING})}},
                           {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": "", "b": 1},
                            "other": 1}),
    "embeddedMetadataWrong": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}),
    "embeddedMetadataText": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": "x"}),
    "embeddedGeneration": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {"generation": "x"}}),
    "embeddedKindNumber": Case(EMBEDDED, {"apiVersion": "v1", "kind": 5}),
    "embeddedOwnerWrong": Case(EMBEDDED, {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "ownerReferences": [{"controller": "yes"}]}}),
}  # fmt: skip


def root(properties: dict[str, Json], **more: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, **more}


def spec(schema: dict[str, Json]) -> dict[str, Json]:
    return root({"spec": obj({"x": schema})})


def rule(text: str, **more: Json) -> dict[str, Json]:
    return {"x-kubernetes-validations": [{"rule": text, **more}]}


# Complete schemas for which a CustomResourceDefinition is rejected (or, if harmless, accepted).
SCHEMAS: dict[str, dict[str, Json]] = {
    "fine": spec(STRING),
    "rootWithoutType": {"properties": {"spec": obj({})}},
    "rootOfStrings": {"type": "string"},
    "rootNullable": root({}, nullable=True),
    "rootAdditional": {"type": "object", "additionalProperties": STRING},
    "fieldWithoutType": spec({}),
    "itemWithoutType": spec(array({})),
    "arrayWithoutItems": spec({"type": "array"}),
    "itemsAsArray": spec({"type": "array", "items": [STRING]}),
    "wrongType": spec({"type": "text"}),
    "nullType": spec({"type": "null"}),
    "typeInJunctor": spec({"type": "string", "anyOf": [{"type": "string"}, {"minLength": 1}]}),
    "manyInJunctor": spec(obj({"a": STRING}, allOf=[{
        "description": "d", "title": "t", "default": {}, "nullable": True, "additionalProperties": STRING,
        "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-embedded-resource": True,
        "x-kubernetes-int-or-string": True, "x-kubernetes-list-type": "set", "x-kubernetes-map-type": "atomic",
        "x-kubernetes-list-map-keys": ["a"], **rule("true")}])),
    "junctorFieldMissing": spec(obj({"a": STRING}, oneOf=[{"properties": {"b": {"minLength": 1}}}])),
    "junctorItemsMissing": spec({"type": "string", "not": {"items": {"minLength": 1}}}),
    "junctorMetadata": root({"metadata": obj({})}, allOf=[{"properties": {"metadata": {"minProperties": 1}}}]),
    "intOrString": spec({**INT_OR_STRING, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
    "intOrStringAllOf": spec({**INT_OR_STRING, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}]}),
    "intOrStringReversed": spec({**INT_OR_STRING, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
    "intOrStringAndMore": spec({**INT_OR_STRING, **ANYTHING, "x-kubernetes-embedded-resource": True}),
    "badPattern": spec({"type": "string", "pattern": "(?=a)[z-a"}),
    "lookahead": spec({"type": "string", "pattern": "a(?!b)"}),
    "backreference": spec({"type": "string", "pattern": "(a)\\1"}),
    "unclosedClass": spec({"type": "string", "anyOf": [{"pattern": "[a"}]}),
    "uniqueItems": spec(array(STRING, uniqueItems=True)),
    "propertiesAndAdditional": spec(obj({"a": STRING}, additionalProperties=STRING)),
    "preserveFalse": spec({"type": "object", "x-kubernetes-preserve-unknown-fields": False}),
    "ref": spec({"$ref": "#/x"}),
    "definitions": spec(obj({}, definitions={"a": STRING})),
    "mapTypeOnString": spec({"type": "string", "x-kubernetes-map-type": "atomic"}),
    "mapTypeUnknown": spec({"type": "object", "x-kubernetes-map-type": "odd"}),
    "listTypeOnObject": spec({"type": "object", "x-kubernetes-list-type": "set"}),
    "listTypeUnknown": spec(array(STRING, **{"x-kubernetes-list-type": "odd"})),
    "setOfObjects": spec(array(obj({"a": STRING}), **{"x-kubernetes-list-type": "set"})),
    "setOfSets": spec(array(array(STRING, **{"x-kubernetes-list-type": "set"}), **{"x-kubernetes-list-type": "set"})),
    "setOfNullable": spec(array({"type": "string", "nullable": True}, **{"x-kubernetes-list-type": "set"})),
    "keysWithoutMap": spec(array(obj({"a": STRING}), **{"x-kubernetes-list-map-keys": ["a"]})),
    "keysWithSet": spec(array(STRING, **{"x-kubernetes-list-type": "set", "x-kubernetes-list-map-keys": ["a"]})),
    "mapWithoutKeys": spec(array(obj({"a": STRING}), **{"x-kubernetes-list-type": "map"})),
    "mapOfStrings": spec(array(STRING, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})),
    "mapKeyUnknown": spec(array(obj({"a": STRING}), **{
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["b", "b"]})),
    "mapKeyCompound": spec(array(obj({"a": obj({})}, required=["a"]), **{
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})),
    "mapKeyOptional": spec(array(obj({"a": {"type": "string", "nullable": True}}, nullable=True), **{
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})),
    "defaultWrongType": spec({"type": "integer", "default": "x"}),
    "defaultTooLong": spec(obj({"a": {"type": "string", "maxLength": 1}}, default={"a": "xx"})),
    "defaultNotPruned": spec(obj({"a": STRING}, default={"b": 1})),
    "defaultMissesRequired": spec(obj({"a": STRING}, required=["a"], default={})),
    "defaultOneOf": spec({"type": "string", "default": "x", "oneOf": [{"minLength": 2}]}),
    "defaultOfRoot": root({}, default={}),
    "defaultOfKind": root({"kind": {"type": "string", "default": "X"}}),
    "defaultOfMetadata": root({"metadata": {"type": "object", "default": {}}}),
    "defaultEmbedded": spec({**EMBEDDED, "default": {"apiVersion": "v1"}}),
    "metadataLabels": root({"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}),
    "metadataName": root({"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}}),
    "metadataString": root({"metadata": STRING}),
    "kindInteger": root({"kind": INTEGER, "apiVersion": INTEGER}),
    "embeddedNoProperties": spec({"type": "object", "x-kubernetes-embedded-resource": True}),
    "embeddedAdditional": spec({**EMBEDDED, "additionalProperties": STRING}),
    "embeddedString": spec({"type": "string", "x-kubernetes-embedded-resource": True}),
    "embeddedKind": spec({**EMBEDDED, "properties": {"kind": INTEGER, "metadata": STRING}}),
    "ruleEmpty": spec({"type": "string", **rule("  ")}),
    "ruleMessages": spec({"type": "string", "x-kubernetes-validations": [
        {"rule": "true", "message": "  "}, {"rule": "true", "message": "a\nb"}, {"rule": "true\n|| true"},
        {"rule": "true", "messageExpression": " "}, {"rule": "true", "reason": "Odd"}]}),
    "ruleFieldPaths": spec(obj({"a": STRING, "m": {"type": "object", "additionalProperties": STRING}},
        **{"x-kubernetes-validations": [{"rule": "true", "fieldPath": path} for path in (
            ".a", ".b", "a", "['a']", ".m.x", ".m['x']", " ", ".a\n", ".a.b", ".")]})),
}  # fmt: skip

# Rejected for their CEL rules, which another package compiles.
RULE_SCHEMAS: dict[str, dict[str, Json]] = {
    "ruleBroken": spec({"type": "string", **rule("self +")}),
    "ruleWrongType": spec({"type": "string", **rule("self + 1 == 2")}),
    "ruleNotBoolean": spec({"type": "string", "maxLength": 5, **rule("self")}),
    "messageNotString": spec({"type": "string", "maxLength": 5, **rule("true", messageExpression="1")}),
    "messageBroken": spec({"type": "string", "maxLength": 5, **rule("true", messageExpression="self + 1")}),
    "oldSelfInAtomicList": spec(array({"type": "string", "maxLength": 5, **rule("self == oldSelf")}, maxItems=5)),
    "oldSelfInSet": spec(array({"type": "string", "maxLength": 5, **rule("self == oldSelf")}, maxItems=5,
                               **{"x-kubernetes-list-type": "set"})),
    "optionalOldSelfUnused": spec({"type": "string", "maxLength": 5, **rule("self != ''", optionalOldSelf=True)}),
    "tooExpensive": spec(array({"type": "string", **rule("self.contains('x')")})),
    "tooExpensiveNested": spec(array(array(STRING), **rule("self.all(x, x.all(y, y.contains('x')))"))),
    "defaultBreaksRule": spec({"type": "integer", "default": 1, **rule("self > 1", message="too small")}),
    "messageTooExpensive": spec({"type": "integer", **rule("self > 5", messageExpression="'got ' + string(self)")}),
    "ruleFine": spec({"type": "integer", **rule("self > 1 && self >= oldSelf")}),
}  # fmt: skip

SMALL = {"type": "string", "maxLength": 20}
KEYED_RULES = array(
    obj({"name": SMALL, "n": {"type": "integer", **rule("self >= oldSelf", message="only up")}}, required=["name"]),
    maxItems=9, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})  # fmt: skip

# Evaluated rules: a create without `old`, otherwise an update from it.
RULES: dict[str, Case] = {
    "ruleOnObject": Case(obj({"a": INTEGER, "b": INTEGER}, **rule("self.a < self.b")), {"a": 2, "b": 1}),
    "ruleOnObjectHolds": Case(obj({"a": INTEGER, "b": INTEGER}, **rule("self.a < self.b")), {"a": 1, "b": 2}),
    "ruleOnString": Case({**SMALL, **rule("self.startsWith('x')", message="  must start with x ")}, "y"),
    "ruleOnInteger": Case({"type": "integer", **rule("self % 2 == 0")}, 3),
    "ruleOnList": Case(array(INTEGER, maxItems=5, **rule("self.all(n, n > 0)")), [1, -1]),
    "ruleOnItems": Case(array({"type": "integer", **rule("self > 0")}, maxItems=5), [1, -1, -2]),
    "ruleOnMapValues": Case({"type": "object", "maxProperties": 5, "additionalProperties": {
        "type": "integer", **rule("self > 0")}}, {"a": 1, "b.c": -1}),
    "ruleOnIntOrString": Case({**INT_OR_STRING, **rule("type(self) == int || self == '5%'")}, "6%"),
    "ruleMissingKey": Case(obj({"a": INTEGER, "b": INTEGER}, **rule("self.a < self.b")), {"a": 2}),
    "ruleDivision": Case({"type": "integer", **rule("1 / self > 0", message="nonzero")}, 0),
    "ruleOverload": Case({**INT_OR_STRING, **rule("self + 1 > 1")}, "x"),
    "messageExpression": Case({"type": "integer", **rule("self > 5", messageExpression="self > 3 ? 'a' : ' b '")}, 3),
    "messageExpressionFails": Case({"type": "integer", **rule("self > 5", message="fixed",
        messageExpression="1 / (self - 3) > 0 ? 'a' : 'b'")}, 3),
    "messageExpressionEmpty": Case({"type": "integer", **rule("self > 5", messageExpression="''")}, 3),
    "messageExpressionLines": Case({"type": "integer", **rule("self > 5", messageExpression="'a\\nb'")}, 3),
    "reasonForbidden": Case({**SMALL, **rule("false", message="no", reason="FieldValueForbidden")}, "y"),
    "reasonRequired": Case({**SMALL, **rule("false", message="no", reason="FieldValueRequired")}, "y"),
    "reasonDuplicate": Case({**SMALL, **rule("false", message="no", reason="FieldValueDuplicate")}, "y"),
    "reasonDuplicateOfObject": Case(obj({"a": SMALL}, **rule("false", reason="FieldValueDuplicate")), {}),
    "reasonInvalid": Case({**SMALL, **rule("false", message="no", reason="FieldValueInvalid")}, "y"),
    "fieldPath": Case(obj({"a": obj({"b": SMALL})}, **rule("false", message="no", fieldPath=".a.b")), {"a": {}}),
    "fieldPathOfMap": Case(obj({"m": {"type": "object", "additionalProperties": SMALL}},
        **rule("false", message="no", fieldPath=".m['x.y']")), {}),
    "twoRules": Case({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 5"}, {"rule": "self > 6"}]}, 3),
    "blockedByType": Case(obj({"a": INTEGER}, **rule("false")), {"a": "x"}),
    "notBlockedByMinimum": Case(obj({"a": {"type": "integer", "minimum": 5}}, **rule("false", message="no")), {"a": 1}),
    "blockedByEnum": Case(obj({"a": {"type": "string", "enum": ["x"]}}, **rule("false")), {"a": "z"}),
    "embeddedRoot": Case({**EMBEDDED, **rule("self.metadata.name.startsWith('x') && self.kind == 'Pod'")},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "y"}}),
    "transitionOnCreate": Case({"type": "integer", **rule("self >= oldSelf")}, 3),
    "optionalOnCreate": Case({"type": "integer", **rule("oldSelf.hasValue() || self > 5", optionalOldSelf=True)}, 3),
    "transition": Case({"type": "integer", **rule("self >= oldSelf")}, 3, 4),
    "transitionHolds": Case({"type": "integer", **rule("self >= oldSelf")}, 5, 4),
    "transitionUnchanged": Case({"type": "integer", **rule("self != oldSelf")}, 5, 5),
    "transitionKeyed": Case(KEYED_RULES, [{"name": "b", "n": 1}, {"name": "a", "n": 1}], [{"name": "a", "n": 2}]),
    "transitionOfMap": Case({"type": "object", "maxProperties": 5, "additionalProperties": {
        "type": "integer", **rule("self >= oldSelf")}}, {"a": 1, "b": 1}, {"a": 2}),
    "optionalOnUpdate": Case({"type": "integer", **rule("self > oldSelf.orValue(9)", optionalOldSelf=True)}, 3, 5),
    "ratcheted": Case({"type": "integer", **rule("self > 5")}, 3, 3),
    "notRatcheted": Case({"type": "integer", **rule("self > 5")}, 2, 3),
    "ratchetedInside": Case(obj({"a": {"type": "integer", **rule("self > 5")}, "b": INTEGER}),
        {"a": 1, "b": 2}, {"a": 1, "b": 1}),
    "notRatchetedOutside": Case(obj({"a": INTEGER, "b": INTEGER}, **rule("self.a > 5")),
        {"a": 1, "b": 2}, {"a": 1, "b": 1}),
    "ratchetedKeyed": Case(array(obj({"name": SMALL, "n": {"type": "integer", **rule("self > 5")}}, required=["name"]),
        maxItems=9, **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
        [{"name": "z", "n": 1}, {"name": "a", "n": 1}], [{"name": "a", "n": 1}]),
    "notRatchetedAtomic": Case(array({"type": "integer", **rule("self > 5")}, maxItems=9), [1, 2], [1]),
    "ratchetedAtomic": Case(array({"type": "integer", **rule("self > 5")}, maxItems=9), [1], [1]),
}  # fmt: skip
