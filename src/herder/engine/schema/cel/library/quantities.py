"""Quantity library: `quantity("1Gi").isGreaterThan(quantity("500Mi"))`."""

from __future__ import annotations

from herder.engine.meta.quantity import DECIMAL_EXPONENT, Quantity, QuantityError, parse
from herder.engine.schema.cel.declarations import Library
from herder.engine.schema.cel.errors import EvaluationError
from herder.engine.schema.cel.types import BOOL, DOUBLE, INT, QUANTITY, STRING

library = Library()


@library.function("quantity", STRING, returns=QUANTITY)
def quantity(text: str) -> Quantity:
    try:
        return parse(text)
    except QuantityError as error:
        raise EvaluationError(str(error)) from None


@library.function("isQuantity", STRING, returns=BOOL)
def is_quantity(text: str) -> bool:
    try:
        parse(text)
    except QuantityError:
        return False
    return True


@library.method("asInteger", QUANTITY, returns=INT)
def as_integer(value: Quantity) -> int:
    number = value.as_int()
    if number is None:
        raise EvaluationError("cannot convert value to integer")
    return number


@library.method("add", QUANTITY, QUANTITY, returns=QUANTITY)
def add(left: Quantity, right: Quantity) -> Quantity:
    return _computed(left, right)


@library.method("sub", QUANTITY, QUANTITY, returns=QUANTITY)
def sub(left: Quantity, right: Quantity) -> Quantity:
    return _computed(left, right.negated())


@library.method("add", QUANTITY, INT, returns=QUANTITY)
def add_int(left: Quantity, right: int) -> Quantity:
    return _computed(left, Quantity(right, 0, DECIMAL_EXPONENT))


@library.method("sub", QUANTITY, INT, returns=QUANTITY)
def sub_int(left: Quantity, right: int) -> Quantity:
    return _computed(left, Quantity(-right, 0, DECIMAL_EXPONENT))


def _computed(left: Quantity, right: Quantity) -> Quantity:
    try:
        return left.add(right)
    except QuantityError as error:
        raise EvaluationError(str(error)) from None


library.function("sign", QUANTITY, returns=INT)(lambda value: value.sign)
library.method("isGreaterThan", QUANTITY, QUANTITY, returns=BOOL)(lambda left, right: left.compare(right) > 0)
library.method("isLessThan", QUANTITY, QUANTITY, returns=BOOL)(lambda left, right: left.compare(right) < 0)
library.method("compareTo", QUANTITY, QUANTITY, returns=INT)(lambda left, right: left.compare(right))
library.method("asApproximateFloat", QUANTITY, returns=DOUBLE)(lambda value: value.as_float())
library.method("isInteger", QUANTITY, returns=BOOL)(lambda value: value.as_int() is not None)
