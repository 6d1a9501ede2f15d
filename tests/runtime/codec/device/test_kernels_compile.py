"""What only a compiler for GPUs can say of the kernels, without a GPU: the interpreter accepts more than it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernel_compiler

TIMEOUT_S = 1800
MOVERS = {"move_rows", "gather_kept"}


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_kernel_compiles_to_separate_roundings_and_wide_loads() -> None:
    """A multiplication fused with an addition would change bytes, a load of single elements would halve the speed."""
    script = Path(kernel_compiler.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert {kernel["codec"] for kernel in kernels} >= {"none", "lossless", "int8", "fp8", "k8v4", "fp4", "sparse"}
    assert [kernel for kernel in kernels if kernel["fused"]] == []
    movers = [kernel for kernel in kernels if kernel["kernel"] in MOVERS and kernel["head_dim"] == 128]
    assert {kernel["kernel"] for kernel in movers} == MOVERS
    assert {kernel["loads_bytes"] for kernel in movers} == {16}
