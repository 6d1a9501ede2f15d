"""What the machine must have before anything is started. One clear message each, with the way out."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvferry_contract.config import Role
from kvferry_contract.split import Split, SplitError
from kvferry_operator.api import quantity
from kvferry_operator.local import addresses, volumes
from kvferry_operator.local.deployment import Deployment
from kvferry_operator.local.errors import CannotStart

RUNTIME = "kvferry-runtime"
_PROBE_SECONDS = 60.0
_MIB = quantity.MIB
_CONFIG, _LAYERS = "config.json", "num_hidden_layers"


def check(deployment: Deployment, memory: Path, way_out: str) -> None:
    """All checks that need the plan.

    memory: a folder of the file system that will hold the rings. way_out: as `addresses.check_free`.

    Raises:
        CannotStart: the first thing that is missing.
    """
    addresses.check_free(deployment.pods, deployment.addresses, way_out)
    check_memory(volumes.memory_limits(deployment.pods), _free(memory))
    programs = {launch.argv[0] for launch in deployment.launches.values()}
    for program in sorted(program for program in programs if Path(program).name == RUNTIME):
        check_runtime(program, os.environ)


def check_memory(limits: Mapping[str, str], free_bytes: int) -> None:
    """
    Raises:
        CannotStart: the volumes in memory would not fit.
    """
    needed = sum(quantity.to_bytes(limit) for limit in limits.values())
    if needed > free_bytes:
        raise CannotStart(
            f"the rings of {len(limits)} pods need {needed // _MIB} MiB of shared memory, {volumes.MEMORY} has "
            f"{free_bytes // _MIB} MiB free: make it larger (`mount -o remount,size=4G {volumes.MEMORY}`, or "
            "`docker run --shm-size=4g`), or lower spec.transfer.bufferBytes"
        )


def check_model(folder: Path, uri: str) -> None:
    """For a model that is read from a folder (not downloaded).

    Raises:
        CannotStart: not there, or no Hugging Face model.
    """
    way_out = "name its folder with --set-model PATH, or the folder above it with --model-dir DIR"
    if not folder.exists():
        raise CannotStart(f"spec.model.uri {uri}: {folder} does not exist; {way_out}")
    if not folder.is_dir():
        raise CannotStart(f"spec.model.uri {uri}: {folder} is no folder; {way_out}")
    missing = _missing(folder)
    if missing:
        raise CannotStart(f"spec.model.uri {uri}: {folder} is no Hugging Face model, it has no {missing}; {way_out}")


def check_split(folder: Path, splits: Mapping[Role, Split]) -> None:
    """Each role's split against the model, where its configuration tells how many layers it has.

    Raises:
        CannotStart: more stages than layers, or layers that do not add up.
    """
    layers = layers_of(folder)
    for role, split in splits.items() if layers else ():
        try:
            split.ranges(layers)
        except SplitError as error:
            raise CannotStart(f"spec.{role}.parallelism: {error}") from error


def layers_of(folder: Path) -> int:
    """How many layers a Hugging Face model has; 0 where its configuration does not tell."""
    try:
        found = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        count = found.get(_LAYERS) or (found.get("text_config") or {}).get(_LAYERS)
        return int(count or 0)
    except (OSError, ValueError, AttributeError, TypeError):
        return 0  # the engine, which can read it or not, has the last word


def check_runtime(executable: str, host: Mapping[str, str]) -> None:
    """Ask the runtime itself whether it can carry anything here.

    Raises:
        CannotStart: the runtime is not installed, or cannot use UCX.
    """
    try:
        result = subprocess.run(  # noqa: S603 (our own program)
            [executable, "probe"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            env=dict(host),
            check=False,
        )
    except FileNotFoundError:
        raise CannotStart(f"{RUNTIME} is not installed here: pip install 'kvferry[sidecar,engine,router]'") from None
    except subprocess.TimeoutExpired:
        raise CannotStart(f"`{RUNTIME} probe` gave no answer within {_PROBE_SECONDS:.0f} s") from None
    why = unusable(result.stdout) if result.returncode == 0 else _last_line(result.stderr)
    if why:
        raise CannotStart(f"transfers cannot run here: {why}; `{RUNTIME} probe` tells more")


def unusable(report: str) -> str:
    """Why a probe's report (JSON) leaves no way to carry anything; empty when there is one."""
    try:
        transports = json.loads(report)["transports"]
        messages = {name: found["message"] for name, found in transports.items() if not found["usable"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        return "the probe's report cannot be read"
    if len(messages) < len(transports):
        return ""
    return messages.get("auto") or next(iter(messages.values()), "no transport is known")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the probe failed"


def is_model(folder: Path) -> bool:
    """Whether the folder holds a Hugging Face model with its weights."""
    return folder.is_dir() and not _missing(folder)


def _missing(folder: Path) -> str:
    if not (folder / _CONFIG).is_file():
        return _CONFIG
    return "" if _any(folder.glob("*.safetensors")) else "*.safetensors"


def _any(found: Iterable[Path]) -> bool:
    return next(iter(found), None) is not None


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
