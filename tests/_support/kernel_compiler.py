"""Compiles every kernel for a GPU that is not there, and prints what each became: `python kernel_compiler.py`.

Triton compiles down to machine code without a device. The kernels are those that the codecs launch, with the arguments
that they launch them with; nothing runs. Prints one JSON object a kernel: {"kernel", "fused", "loads_bytes"}, the last
being the widest load of global memory. Must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.codec.device.sparse import choose, pack
from kvferry_runtime.codec.sparse.payload import longest_payload
from kvferry_runtime.layout import KvDtype

HOPPER = GPUTarget("cuda", 90, 32)
DTYPES = (KvDtype.BF16, KvDtype.FP16, KvDtype.FP32)
TOKENS, HEADS, HEAD_DIMS = 64, 8, (128, 63)
_TYPES = {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}
_WIDTHS = re.compile(r"ld\.global\S*?(?:\.v(\d))?\.[bufs](\d+)")

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """What would be launched meanwhile: kernel, arguments, constants."""
    found: list[Launch] = []
    run = triton.runtime.jit.JITFunction.run
    triton.runtime.jit.JITFunction.run = lambda self, *args, **rest: found.append((self, args, rest))
    try:
        yield found
    finally:
        triton.runtime.jit.JITFunction.run = run


def rows_of(shape: ChunkShape) -> DeviceRows:
    row = shape.heads * shape.head_dim
    return DeviceRows(
        planes=torch.zeros(shape.layers * shape.parts, dtype=torch.int64),
        blocks=torch.zeros(TOKENS, dtype=torch.int32),
        block_tokens=16,
        first_token=3,
        block_stride=shape.parts * 16 * row,
        token_stride=row,
        head_stride=shape.head_dim,
        aligned=shape.head_dim * shape.dtype.itemsize % 16 == 0,
    )


def launches(codec: DeviceCodec, shape: ChunkShape) -> list[Launch]:
    """Of one chunk and its payload."""
    rows = rows_of(shape)
    payload = torch.zeros(codec.max_wire_bytes(shape), dtype=torch.uint8)
    status = torch.zeros(STATUS_WORDS, dtype=torch.int32)
    with recorded() as found:
        codec.encode(rows, shape, payload, status)
        codec.decode(payload[: _length(codec, shape)], shape, rows, status)
    return found


def sparse_launches(shape: ChunkShape) -> list[Launch]:
    """Of one chunk that is half kept; what is kept is put in place as `none` is."""
    payload = torch.zeros(longest_payload(shape), dtype=torch.uint8)
    status = torch.zeros(STATUS_WORDS, dtype=torch.int32)
    choices = [choose(torch.zeros(shape.tokens), shape.tokens // 2, 0, 0) for _ in range(shape.layers)]
    with recorded() as found:
        pack(rows_of(shape), shape, choices, 0, payload, status)
    return found


def _length(codec: DeviceCodec, shape: ChunkShape) -> int:
    """A payload's length that the codec may have written; a shorter one where it can be."""
    longest = codec.max_wire_bytes(shape)
    return longest if codec.fixed_ratio or shape.dtype is KvDtype.FP16 else longest * 9 // 10 // 2 * 2


def compiled(launch: Launch) -> dict[str, Any]:
    """Compile one launch to the assembly of the target."""
    kernel, arguments, keywords = launch
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | keywords
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = _TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {name: keywords[name] for name in ("num_warps", "enable_fp_fusion")}
    assembly = triton.compile(source, target=HOPPER, options=options).asm["ptx"]
    widths = [int(count or 1) * int(bits) // 8 for count, bits in _WIDTHS.findall(assembly)]
    return {"kernel": kernel.__name__, "fused": len(re.findall(r"\bfma\.", assembly)), "loads_bytes": max(widths)}


def main() -> None:
    for codec in device_codecs().values():
        for dtype in DTYPES:
            for head_dim in HEAD_DIMS:
                shape = ChunkShape(2, 2, TOKENS, HEADS, head_dim, dtype)
                tell(codec.name, shape, launches(codec, shape))
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            shape = ChunkShape(2, 2, TOKENS, HEADS, head_dim, dtype)
            tell("sparse", shape, sparse_launches(shape))


def tell(codec: str, shape: ChunkShape, found: list[Launch]) -> None:
    for launch in found:
        result = compiled(launch)
        print(json.dumps({"codec": codec, "dtype": shape.dtype.value, "head_dim": shape.head_dim} | result))


if __name__ == "__main__":
    main()
