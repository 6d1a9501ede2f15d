"""How kernels on host memory are compiled, and the few operations that numba lacks.

Kernels are compiled for fixed signatures when their module is imported, so that no request waits for a compiler.
Without `fastmath`: it changes bytes. With numpy's error model: a division never raises.

numba keeps what it compiled in $NUMBA_CACHE_DIR, else beside the source, else in the user's cache folder. If none of
them can be written (read-only image, no home) kernels are compiled in each process anew, which takes seconds. numba
looks at a kernel's own file alone, but kernels are made of parts of other files: here what is kept counts as old as
soon as any file of `_SHARED_SOURCES` changed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import intrinsic

_SHARED_SOURCES = ("host/*.py", "*/host*.py", "*/format.py")
"""What kernels may be made of, in the folder of all codecs: what they share, each other's parts, formats' numbers."""

_log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def kernel(signature: Any) -> Callable[[F], F]:
    """Compile an entry point that releases the GIL, from the cache if it is there."""

    def compile_now(function: F) -> F:
        dispatcher = njit(nogil=True, error_model="numpy")(function)
        try:
            dispatcher._cache = _SharedPartsCache(function)
        except (RuntimeError, OSError) as error:
            _log.warning("compiled without a cache (set NUMBA_CACHE_DIR to a folder that can be written): %s", error)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return cast(F, dispatcher)

    return compile_now


class _SharedPartsCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """numba's own cache, but for when it is old."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _digest_of_sources(Path(__file__).parents[1], Path(function.__code__.co_filename))
        self._cache_file = IndexDataCacheFile(self.cache_path, self._impl.filename_base, source_stamp=stamp)


@cache
def _digest_of_sources(codecs: Path, own: Path) -> bytes:
    shared = {source for pattern in _SHARED_SOURCES for source in codecs.glob(pattern)}
    digest = hashlib.sha256()
    for source in [own, *sorted(shared)]:
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.digest()


def inlined(function: F) -> F:
    """A part of kernels; may take other parts as arguments.

    Its code is copied into each kernel before types are inferred: a call for each row would cost as much as the row,
    and numba cannot cache a kernel that passes functions around.
    """
    return cast(F, njit(nogil=True, error_model="numpy", inline="always")(function))


_operation = cast("Callable[[Callable[..., Any]], Callable[..., Any]]", intrinsic)


@_operation
def float_of(_context: Any, _bits: Any) -> Any:
    """fp32 with these bits (uint32)."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@_operation
def bits_of(_context: Any, _value: Any) -> Any:
    """Bits (uint32) of an fp32."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@_operation
def pointer(_context: Any, _address: Any, element: Any) -> Any:
    """Pointer to elements of the type of `element` at this address (uint64); it can be indexed, nothing is checked."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], target.get_value_type(signature.return_type))

    return types.CPointer(element)(types.uint64, element), generate


@_operation
def advanced(_context: Any, start: Any, _count: Any) -> Any:
    """Pointer `count` elements (int64) after `start`."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return start(start, types.int64), generate


@_operation
def fetch_ahead(_context: Any, start: Any) -> Any:
    """Ask for the cache line at this pointer; without effect where there is no such memory."""

    def generate(target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number, place = ir.IntType(32), ir.IntType(8).as_pointer()
        operation = ir.FunctionType(ir.VoidType(), [place, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place], operation)
        to_read, keep_close, data = (number(value) for value in (0, 3, 1))
        builder.call(function, [builder.bitcast(arguments[0], place), to_read, keep_close, data])
        return target.get_dummy_value()

    return types.void(start), generate


U8, U16, U32, U64, F32 = np.uint8, np.uint16, np.uint32, np.uint64, np.float32
"""Casts inside kernels. numba widens integers to 64 bits in every operation: a result is cast back at once, so that
the compiler sees narrow lanes."""
