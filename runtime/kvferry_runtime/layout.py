"""Shapes of the KV cache of one pod. Pure; no torch, no numpy.

The canonical order of the raw bytes of a chunk, whatever the engine's own order, is
`[layer][part][token][head][head_dim]`, little-endian, without padding; part 0 is K, part 1 is V (latent caches have
one part). A *row* is the `head_dim` values of one (layer, part, token, head): codecs see a chunk as rows x head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """The layers that this pod holds: `shapes[i]` is global layer `first_layer + i` of `total_layers`.

    kinds: shapes of all layers of the model, each once; empty where only the layers held here are known.
    """

    total_layers: int
    first_layer: int
    shapes: tuple[LayerShape, ...]
    kinds: frozenset[LayerShape] = frozenset()

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
        if self.kinds and not self.kinds.issuperset(self.shapes):
            raise LayoutError(
                f"the model's kinds of layer {_text(self.kinds)} lack some held here: {_text(self.shapes)}"
            )

    @classmethod
    def stage(cls, model: Sequence[LayerShape], layers: range) -> KvLayout:
        """What a pod holds of a model whose every layer's shape is known: these layers.

        Raises:
            LayoutError: none, or not within the model.
        """
        held = tuple(model[layer] for layer in layers if layer < len(model))
        if not held or len(held) != len(layers):
            raise LayoutError(f"{layers_text(layers)} cannot be held of a model of {len(model)} layers")
        return cls(len(model), layers.start, held, frozenset(model))

    def part(self, layers: range) -> KvLayout:
        """Some of the layers held here, as if no others were.

        Raises:
            LayoutError: none, not one after the other, or not held here.
        """
        held = self.layers
        if not layers or layers.step != 1 or layers.start < held.start or layers.stop > held.stop:
            raise LayoutError(f"{layers_text(layers)} cannot be offered: this pod holds {layers_text(held)}")
        shapes = self.shapes[layers.start - self.first_layer : layers.stop - self.first_layer]
        return KvLayout(self.total_layers, layers.start, shapes, self.kinds)

    @property
    def whole(self) -> bool:
        """Whether every layer of the model is held here."""
        return len(self.shapes) == self.total_layers

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
        """The parts that both sides must share: number of layers of the model, and its kinds of layer.

        Pods with different layers of one model agree if its layers are of one kind, or where `kinds` is known. Without
        it, pods of a model with mixed kinds agree only if they hold the same ones: neither knows the other's layers.
        """
        return {"kv.layers": str(self.total_layers), "kv.shape": _text(self.kinds or self.shapes)}


def layers_text(layers: range) -> str:
    """As messages name them: "layers 0 to 11"."""
    return f"layers {layers.start} to {layers.stop - 1}" if layers else f"no layers ({layers.start} to {layers.stop})"


def _text(shapes: Iterable[LayerShape]) -> str:
    return ",".join(sorted({f"{s.parts}x{s.heads}x{s.head_dim}:{s.dtype.value}" for s in shapes}))
