"""A model of which only some layers are here: only their weights are read, and nothing else ever takes memory.

The model is laid out without memory, what belongs to other stages is taken off, and every parameter that is left gets
its tensor from the safetensors files. These are mapped, so of a file only the tensors that are used become resident.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import nn

from kvferry_runtime.engine.reference import attention
from kvferry_runtime.errors import SettingsError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Models whose embedding, layers, norm and head do nothing but what can be cut between them: others scale what comes
out of the embedding, or share something between layers, and would give other answers when they are cut."""
_SINGLE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TIED = {"model.embed_tokens.weight": "lm_head.weight", "lm_head.weight": "model.embed_tokens.weight"}
_DERIVED = "rotary_emb.inv_freq"
"""In files of old: follows from the configuration."""
_NAMED = 4
"""Names that a message gives at most."""


def load(folder: Path, config: Any, dtype: torch.dtype | None, layers: range) -> Any:
    """The model of `config` with these layers alone, on the CPU; the embedding if they are the first ones, norm and
    head if they are the last ones. Layers keep their global number (`self_attn.layer_idx`).

    Args:
        dtype: of the weights; None for the one in which they were saved.

    Raises:
        SettingsError: a family that is not cut, quantised weights, or a parameter without a tensor of its shape.
        OSError, SafetensorError: the files cannot be read.
    """
    _refuse_uncut(config, folder)
    files = _files(folder)
    dtype = dtype or getattr(config, "dtype", None) or _saved_dtype(files)
    config.dtype = dtype
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.NAME)
    _cut(module, layers)
    # what follows from the configuration is not in the files
    module.model.rotary_emb = type(module.model.rotary_emb)(config=config)
    _fill(module, files, layers, folder)
    if (folder / "generation_config.json").is_file():
        module.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return module


def weight_bytes(module: Any) -> int:
    """Of everything that the module holds; what two parameters share counts once."""
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in chain(module.parameters(), module.buffers())}
    return sum(tensors.values())


def _refuse_uncut(config: Any, folder: Path) -> None:
    if config.model_type not in FAMILIES:
        raise SettingsError(
            f"{folder}: the reference engine cuts models of type {', '.join(FAMILIES)} into pipeline stages, "
            f"not {config.model_type!r}: set parallelism.pipeline to 1"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise SettingsError(
            f"{folder}: the weights are quantised, and those are not cut into pipeline stages: "
            "set parallelism.pipeline to 1, or take the model's bf16 weights"
        )


def _files(folder: Path) -> Mapping[str, Path]:
    """In which file each tensor is."""
    if (index := folder / _INDEX).is_file():
        try:
            places = json.loads(index.read_text())["weight_map"]
            return {name: folder / Path(file).name for name, file in places.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(f"{index}: no index of weights, fetch it again: {error}") from error
    if not (file := folder / _SINGLE_FILE).is_file():
        raise SettingsError(f"{folder}: there is no {_SINGLE_FILE} and no {_INDEX}, fetch the model again")
    with safe_open(file, framework="pt") as tensors:
        return dict.fromkeys(tensors.keys(), file)


def _saved_dtype(files: Mapping[str, Path]) -> torch.dtype:
    name, file = next(iter(files.items()))
    with safe_open(file, framework="pt") as tensors:
        dtype: torch.dtype = tensors.get_tensor(name).dtype
        return dtype


def _cut(module: Any, layers: range) -> None:
    """Take off what other stages compute."""
    whole = module.model
    if layers.start > 0:
        whole.embed_tokens = None
    if layers.stop < len(whole.layers):
        whole.norm, module.lm_head = nn.Identity(), None
    whole.layers = whole.layers[layers.start : layers.stop]


def _fill(module: Any, files: Mapping[str, Path], layers: range, folder: Path) -> None:
    sources = {name: _source(name, layers) for name in module.state_dict()}
    if module.config.tie_word_embeddings:  # one tensor for both, under either name
        sources = {name: source if source in files else _TIED.get(source, source) for name, source in sources.items()}
    if missing := sorted({source for source in sources.values() if source not in files}):
        raise SettingsError(f"{folder}: the weights lack {_some(missing)}, which this stage needs: fetch them again")
    if unknown := _unknown(files, set(sources.values()), layers):
        raise SettingsError(
            f"{folder}: layers have {_some(unknown)}, which the installed transformers does not compute: "
            "set parallelism.pipeline to 1, or use another engine for this model"
        )
    shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in module.state_dict().items()}
    for file in sorted(set(map(files.__getitem__, sources.values()))):
        with safe_open(file, framework="pt") as tensors:
            for name, source in sources.items():
                if files[source] == file:
                    _set(module, name, tensors.get_tensor(source), *shapes[name], folder)
    if left := [name for name, tensor in _tensors(module) if tensor.is_meta]:
        raise SettingsError(f"{folder}: {_some(left)} cannot be derived from the configuration: use another engine")


def _set(module: Any, name: str, tensor: torch.Tensor, shape: torch.Size, dtype: torch.dtype, folder: Path) -> None:
    if tensor.shape != shape:
        raise SettingsError(
            f"{folder}: {name} has the shape {list(tensor.shape)} in the weights, the configuration wants {list(shape)}"
        )
    owner, _, attribute = name.rpartition(".")
    # not copied: a whole model is not either, and some kernels add up in another order where a matrix lies elsewhere
    # relative to a cache line
    setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor.to(dtype), requires_grad=False))


def _source(name: str, layers: range) -> str:
    """The tensor in the files for this parameter of the module."""
    head, found, rest = name.partition("model.layers.")
    if not found or head:
        return name
    number, _, parameter = rest.partition(".")
    return f"model.layers.{layers.start + int(number)}.{parameter}"


def _unknown(files: Iterable[str], known: set[str], layers: range) -> list[str]:
    """Tensors of our own layers that no parameter takes."""
    prefixes = tuple(f"model.layers.{layer}." for layer in layers)
    return sorted(
        name for name in files if name.startswith(prefixes) and name not in known and not name.endswith(_DERIVED)
    )


def _tensors(module: Any) -> Iterable[tuple[str, torch.Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
