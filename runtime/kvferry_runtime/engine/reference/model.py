"""Load a Hugging Face model, refuse what this engine cannot compute rightly, and say what identifies it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from kvferry_runtime.engine.reference import attention
from kvferry_runtime.errors import ModelUnavailable, SettingsError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

_TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KV_DTYPES = {torch.bfloat16: KvDtype.BF16, torch.float16: KvDtype.FP16, torch.float32: KvDtype.FP32}
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change with the longest sequence of a batch."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_UNSTABLE_CONFIG_KEYS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
_PROMPT_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""All that decides which tokens a prompt has: KV of other tokens in equal number would be taken for the right one."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. `module` maps token ids to logits; max_positions bounds prompt and completion together."""

    folder: Path
    module: Any
    layout: KvLayout
    vocabulary: int
    max_positions: int
    end_tokens: frozenset[int]
    mixture_of_experts: bool
    dtype: torch.dtype
    device: torch.device


def make_deterministic(threads: int) -> None:
    """Before anything is computed: a fixed number of threads, and no kernel that may add up in another order.

    Called once by the process that owns torch's global state; a second engine in it must use the same number.
    """
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        # not on a CPU, where the kernels in use are deterministic: the call imports torch's compiler, 3 s and 100 MB
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # every row is written before it is read
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False


def place_of(device: str) -> torch.device:
    """Where a model is computed. device: auto, cpu or cuda.

    Raises:
        SettingsError: there is no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("--device cuda: torch sees no GPU here")
    return torch.device("cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu")


def load(folder: Path, device: str, dtype: str) -> Model:
    """Load the model in `folder`.

    Args:
        device: auto, cpu or cuda. dtype: auto (as saved), bf16, fp16 or fp32.

    Raises:
        SettingsError: not a causal language model, one that this engine does not compute (named), or not whole.
        ModelUnavailable: the weights cannot be read.
    """
    place = place_of(device)
    attention.register()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        _refuse_unsupported(config, folder)
        module = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=_TORCH_DTYPES.get(dtype, "auto"),
            attn_implementation=attention.NAME,
            use_safetensors=True,
            local_files_only=True,
        )
    except (ValueError, KeyError) as error:
        raise SettingsError(
            f"{folder}: the installed transformers cannot load it as a causal language model: {error}"
        ) from error
    except safetensors.SafetensorError as error:
        raise SettingsError(f"{folder}: the weights are damaged or incomplete, fetch them again: {error}") from error
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is None:  # of transformers: a file that the folder should have
            raise SettingsError(f"{folder}: the model is incomplete: {error}") from error
        raise ModelUnavailable(f"{folder}: the model cannot be read: {error}") from error
    module = module.eval().to(place)
    return _describe(folder, module, place)


def fingerprint(model: Model, name: str, revision: str, threads: int) -> Mapping[str, str]:
    """What prefill and decode must share so that one can go on where the other stopped, token for token."""
    config = {key: value for key, value in model.module.config.to_dict().items() if key not in _UNSTABLE_CONFIG_KEYS}
    return {
        "model.name": name,
        "model.revision": revision,
        "model.config": _short(json.dumps(config, sort_keys=True, default=str).encode()),
        "model.weights": _weights_digest(model.folder),
        "model.tokenizer": _files_digest(model.folder, _PROMPT_FILES),
        "engine": "reference",
        "engine.dtype": _KV_DTYPES[model.dtype].value,
        "engine.device": model.device.type,
        "engine.threads": str(threads),
    }


def _refuse_unsupported(config: Any, folder: Path) -> None:
    """Everything that would be computed wrongly, or differently in another batch."""
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise SettingsError(
            f"{folder}: layers of type {', '.join(sorted(layer_types - {'full_attention'}))}; "
            "the reference engine computes full attention only, use another engine for this model"
        )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if (kind := rope.get("rope_type", "default")) in _BATCH_DEPENDENT_ROPE:
        raise SettingsError(
            f"{folder}: rotary embedding {kind!r} depends on the batch; use another engine for this model"
        )


def _describe(folder: Path, module: Any, device: torch.device) -> Model:
    config = module.config
    dtype = module.dtype
    if not getattr(module, "_supports_attention_backend", False) or dtype not in _KV_DTYPES:
        raise SettingsError(
            f"{folder}: {type(module).__name__} in {dtype} takes no attention function of its own or has another "
            "dtype than bf16, fp16, fp32; use another engine for this model"
        )
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    shape = LayerShape(parts=2, heads=kv_heads, head_dim=head_dim, dtype=_KV_DTYPES[dtype])
    return Model(
        folder=folder,
        module=module,
        layout=KvLayout(total_layers=layers, first_layer=0, shapes=(shape,) * layers),
        vocabulary=config.vocab_size,
        max_positions=config.max_position_embeddings,
        end_tokens=_end_tokens(config.eos_token_id) | _end_tokens(module.generation_config.eos_token_id),
        mixture_of_experts=any(getattr(config, name, None) for name in _EXPERT_COUNTS),
        dtype=dtype,
        device=device,
    )


def _end_tokens(value: int | list[int] | None) -> frozenset[int]:
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])


def _weights_digest(folder: Path) -> str:
    """Over the size and samples of each weight file: cheap at any size, and other weights of one shape differ."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _files_digest(folder: Path, names: Sequence[str]) -> str:
    """Over those of these small files that are there."""
    digest = hashlib.sha256()
    for name in names:
        if (file := folder / name).is_file():
            digest.update(f"{name}:{file.stat().st_size};".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
