"""Load a Hugging Face model, or one pipeline stage of it, and refuse what this engine cannot compute rightly."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers

from kvferry_contract.split import WHOLE, Split, SplitError
from kvferry_runtime.engine.reference import attention, stage_model
from kvferry_runtime.errors import ModelUnavailable, SettingsError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

_TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KV_DTYPES = {torch.bfloat16: KvDtype.BF16, torch.float16: KvDtype.FP16, torch.float32: KvDtype.FP32}
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies change with the longest sequence of a batch."""
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model, or the layers of one stage of it: `layout` says which.

    `module` maps token ids to logits where all layers are here (see `passes` for stages). max_positions bounds prompt
    and completion together.
    """

    folder: Path
    module: Any
    layout: KvLayout
    hidden_size: int
    vocabulary: int
    max_positions: int
    end_tokens: frozenset[int]
    mixture_of_experts: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether the embedding is here."""
        return self.layout.first_layer == 0

    @property
    def last(self) -> bool:
        """Whether norm and head are here."""
        return self.layout.layers.stop == self.layout.total_layers


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


def load(folder: Path, device: str, dtype: str, split: Split = WHOLE, stage: int = 0) -> Model:
    """Load the model in `folder`, or what one stage of `split` holds of it.

    Args:
        device: auto, cpu or cuda. dtype: auto (as saved), bf16, fp16 or fp32.

    Raises:
        SettingsError: not a causal language model, one that this engine does not compute or cut (named), fewer layers
            than stages, or weights that are not whole.
        ModelUnavailable: the weights cannot be read.
    """
    place = place_of(device)
    attention.register()
    transformers.utils.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        _refuse_unsupported(config, folder)
        layers = split.ranges(config.num_hidden_layers)[stage]
        module = _read(folder, config, _TORCH_DTYPES.get(dtype), layers)
    except SplitError as error:
        raise SettingsError(f"{folder}: {error}") from error
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
    return _describe(folder, module, layers, place)


def _read(folder: Path, config: Any, dtype: torch.dtype | None, layers: range) -> Any:
    if len(layers) < config.num_hidden_layers:
        return stage_model.load(folder, config, dtype, layers)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype or "auto",
        attn_implementation=attention.NAME,
        use_safetensors=True,
        local_files_only=True,
    )


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


def _describe(folder: Path, module: Any, layers: range, device: torch.device) -> Model:
    config = module.config
    dtype = module.dtype
    if not getattr(module, "_supports_attention_backend", False) or dtype not in KV_DTYPES:
        raise SettingsError(
            f"{folder}: {type(module).__name__} in {dtype} takes no attention function of its own or has another "
            "dtype than bf16, fp16, fp32; use another engine for this model"
        )
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    shape = LayerShape(parts=2, heads=kv_heads, head_dim=head_dim, dtype=KV_DTYPES[dtype])
    return Model(
        folder=folder,
        module=module,
        layout=KvLayout(config.num_hidden_layers, layers.start, (shape,) * len(layers)),
        hidden_size=config.hidden_size,
        vocabulary=config.vocab_size,
        max_positions=config.max_position_embeddings,
        end_tokens=_end_tokens(config.eos_token_id) | _end_tokens(module.generation_config.eos_token_id),
        mixture_of_experts=any(getattr(config, name, None) for name in _EXPERT_COUNTS),
        dtype=dtype,
        device=device,
    )


def _end_tokens(value: int | list[int] | None) -> frozenset[int]:
    return frozenset(value if isinstance(value, list) else [] if value is None else [value])
