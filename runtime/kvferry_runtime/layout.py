"""Shapes of the KV cache of one pod. Pure; no torch, no numpy.

The canonical order of the raw bytes of a chunk, whatever the engine's own order, is
`[layer][part][token][head][head_dim]`, little-endian, without padding; part 0 is K, part 1 is V (latent caches have
one part). A *row* is the `head_dim` values of one (layer, part, token, head): codecs see a chunk as rows x head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvferry_runtime.errors import LayoutError

MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 8192


class KvDtype(StrEnum):
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    UINT8 = "uint8"
    """Opaque bytes (packed or already quantised caches): only exact methods apply."""

    @property
    def itemsize(self) -> int:
        return {"bf16": 2, "fp16": 2, "fp32": 4, "uint8": 1}[self.value]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer's cache: `parts` x tokens x `heads` x `head_dim` of `dtype`."""

    parts: int
    heads: int
    head_dim: int
    dtype: KvDtype

    def __post_init__(self) -> None:
        if self.parts not in (1, 2) or not 1 <= self.heads <= MAX_HEADS or not 1 <= self.head_dim <= MAX_HEAD_DIM:
            raise LayoutError(
                f"layer shape parts={self.parts} heads={self.heads} head_dim={self.head_dim}: "
                f"allowed are parts 1 or 2, heads 1 to {MAX_HEADS}, head_dim 1 to {MAX_HEAD_DIM}"
            )

    @property
    def rows_per_token(self) -> int:
        return self.parts * self.heads

    @property
    def bytes_per_token(self) -> int:
        return self.rows_per_token * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The layers that this pod holds: `shapes[i]` is global layer `first_layer + i` of `total_layers`."""

    total_layers: int
    first_layer: int
    shapes: tuple[LayerShape, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.total_layers <= MAX_LAYERS:
            raise LayoutError(f"a model of {self.total_layers} layers: allowed are 1 to {MAX_LAYERS}")
        if not self.shapes:
            raise LayoutError("a pod that holds no layer: at least one shape is needed")
        if not 0 <= self.first_layer <= self.total_layers - len(self.shapes):
            raise LayoutError(
                f"layers {self.first_layer} to {self.first_layer + len(self.shapes) - 1} do not lie within "
                f"0 to {self.total_layers - 1}"
            )

    @property
    def layers(self) -> range:
        """Global numbers of the layers held here."""
        return range(self.first_layer, self.first_layer + len(self.shapes))

    def shape(self, layer: int) -> LayerShape:
        """Shape of the layer with this global number."""
        if layer not in self.layers:
            raise LayoutError(
                f"layer {layer} is not held here: this pod holds {self.layers.start} to {self.layers.stop - 1}"
            )
        return self.shapes[layer - self.first_layer]

    @property
    def bytes_per_token(self) -> int:
        return sum(shape.bytes_per_token for shape in self.shapes)

    def fingerprint(self) -> Mapping[str, str]:
        """The parts that both sides must share: number of layers of the model and the kinds of layer held here.

        Pods with different layers of one model agree if all its layers are of one kind. With mixed kinds they agree if
        they hold the same kinds; otherwise they refuse each other, as neither knows the other's layers.
        """
        kinds = sorted({f"{s.parts}x{s.heads}x{s.head_dim}:{s.dtype.value}" for s in self.shapes})
        return {"kv.layers": str(self.total_layers), "kv.shape": ",".join(kinds)}
