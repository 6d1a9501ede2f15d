"""Compiles every kernel for a GPU that is not there, and prints what each became: `python kernel_compiler.py`.

Triton compiles down to machine code without a device. The kernels are those that the codecs launch, with the arguments
that they launch them with; nothing runs. Prints one JSON object a kernel: {"kernel", "fused", "loads_bytes"}, the last
being the widest load of global memory. Must run in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.codec.device.registry import device_codecs
from kvferry_runtime.layout import KvDtype

HOPPER = GPUTarget("cuda", 90, 32)
DTYPES = (KvDtype.BF16, KvDtype.FP16, KvDtype.FP32)
TOKENS, HEADS, HEAD_DIMS = 64, 8, (128, 63)
_TYPES = {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}
_WIDTHS = re.compile(r"ld\.global\S*?(?:\.v(\d))?\.[bufs](\d+)")

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def launches(codec: DeviceCodec, shape: ChunkShape) -> Iterator[Launch]:
    """What the codec would launch for one chunk and its payload: kernel, arguments, constants."""
    found: list[Launch] = []
    run = triton.runtime.jit.JITFunction.run
    triton.runtime.jit.JITFunction.run = lambda self, *args, **rest: found.append((self, args, rest))
    row = shape.heads * shape.head_dim
    rows = DeviceRows(
        planes=torch.zeros(shape.layers * shape.parts, dtype=torch.int64),
        blocks=torch.zeros(TOKENS, dtype=torch.int32),
        block_tokens=16,
        first_token=3,
        block_stride=shape.parts * 16 * row,
        token_stride=row,
        head_stride=shape.head_dim,
        aligned=shape.head_dim * shape.dtype.itemsize % 16 == 0,
    )
    payload = torch.zeros(codec.max_wire_bytes(shape), dtype=torch.uint8)
    status = torch.zeros(STATUS_WORDS, dtype=torch.int32)
    try:
        codec.encode(rows, shape, payload, status)
        codec.decode(payload[: _length(codec, shape)], shape, rows, status)
    finally:
        triton.runtime.jit.JITFunction.run = run
    yield from found


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
                for launch in launches(codec, shape):
                    result = compiled(launch)
                    print(json.dumps({"codec": codec.name, "dtype": dtype.value, "head_dim": head_dim} | result))


if __name__ == "__main__":
    main()
