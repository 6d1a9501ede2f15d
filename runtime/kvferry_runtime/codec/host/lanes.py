"""Vectors of 16 lanes for kernels whose loops are too short for the compiler's own vectoriser.

A kernel that works on groups of 16 elements would else unroll into 16 scalar steps. The vectors are LLVM's: any
processor can run them, with as many instructions as its registers need. Every operation works lane by lane; floats
are rounded to nearest even after each of them. Nothing here touches memory but `load` and `store`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_operation = cast("Callable[[Callable[..., Any]], Callable[..., Any]]", intrinsic)


class Lanes(types.Type):  # type: ignore[misc]
    """16 values of `element`, a numba number type."""

    def __init__(self, element: Any) -> None:
        self.element = element
        super().__init__(name=f"Lanes({element})")


def _vector(element: Any) -> Any:
    return ir.VectorType(ir.FloatType() if element == types.float32 else ir.IntType(element.bitwidth), LANES)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, _vector(lanes.element))


@_operation
def load(_context: Any, start: Any) -> Any:
    """The 16 elements from this pointer on."""
    lanes = Lanes(start.dtype)

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(arguments[0], _vector(lanes.element).as_pointer())
        return builder.load(address, align=lanes.element.bitwidth // 8)

    return lanes(start), generate


@_operation
def store(_context: Any, start: Any, lanes: Any) -> Any:
    """Write 16 elements from this pointer on."""

    def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address = builder.bitcast(arguments[0], _vector(lanes.element).as_pointer())
        builder.store(arguments[1], address, align=lanes.element.bitwidth // 8)
        return target.get_dummy_value()

    return types.void(start, lanes), generate


@_operation
def splat(_context: Any, value: Any) -> Any:
    """The same number in every lane."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        vector = _vector(value)
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), places)

    return Lanes(value)(value), generate


@_operation
def converted(_context: Any, lanes: Any, number: Any) -> Any:
    """Integers as the type of `number`: widened by their sign if they have one, cut to their low bits, or as floats."""
    wanted = Lanes(number)

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        vector, signed = _vector(wanted.element), lanes.element.signed
        if wanted.element == types.float32:
            return (builder.sitofp if signed else builder.uitofp)(arguments[0], vector)
        if wanted.element.bitwidth <= lanes.element.bitwidth:
            return builder.trunc(arguments[0], vector)
        return (builder.sext if signed else builder.zext)(arguments[0], vector)

    return wanted(lanes, number), generate


@_operation
def floats(_context: Any, lanes: Any) -> Any:
    """fp32 with these bits."""
    return _reinterpreted(lanes, types.float32)


@_operation
def bits(_context: Any, lanes: Any) -> Any:
    """Bits of fp32."""
    return _reinterpreted(lanes, types.uint32)


def _reinterpreted(lanes: Any, element: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _vector(element))

    return Lanes(element)(lanes), generate


@_operation
def largest(_context: Any, lanes: Any) -> Any:
    """The largest of 16 unsigned integers."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        vector = _vector(lanes.element)
        name = f"llvm.vector.reduce.umax.v{LANES}i{lanes.element.bitwidth}"
        reduction = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector.element, [vector]), name)
        return builder.call(reduction, arguments)

    return lanes.element(lanes), generate


def _pairwise(for_integers: str, for_floats: str = "") -> Callable[..., Any]:
    """An operation on two vectors of one type, by the names that llvmlite has for it."""

    def operation(_context: Any, left: Any, right: Any) -> Any:
        name = for_floats if left.element == types.float32 else for_integers

        def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(arguments[0], arguments[1])

        return (left(left, right), generate) if left == right and name else None

    return _operation(operation)


add = _pairwise("add", "fadd")
subtract = _pairwise("sub", "fsub")
multiply = _pairwise("mul", "fmul")
divide = _pairwise("", "fdiv")
both = _pairwise("and_")
either = _pairwise("or_")
differing = _pairwise("xor")
shifted_left = _pairwise("shl")
shifted_right = _pairwise("lshr")


def _chosen(comparison: str) -> Callable[..., Any]:
    """The one of two integers for which the comparison with the other holds."""

    def operation(_context: Any, left: Any, right: Any) -> Any:
        def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            compare = builder.icmp_signed if left.element.signed else builder.icmp_unsigned
            return builder.select(compare(comparison, arguments[0], arguments[1]), arguments[0], arguments[1])

        return (left(left, right), generate) if left == right else None

    return _operation(operation)


smaller = _chosen("<")
larger = _chosen(">")


@_operation
def where_below(_context: Any, lanes: Any, bound: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes where an unsigned integer is below `bound`, else `no`."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_unsigned("<", arguments[0], arguments[1]), arguments[2], arguments[3])

    return (yes(lanes, bound, yes, no), generate) if lanes == bound and yes == no else None
