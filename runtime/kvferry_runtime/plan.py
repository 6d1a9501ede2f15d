"""Which chunks a transfer consists of, in which order. Pure.

The sender alone plans; the receiver takes what each header says and checks coverage against the SEAL.

Layer-wise, the chunks of one layer are planned when its tokens are final. In request mode all chunks are planned
after the pass, and several layers of equal shape share a chunk. Which of the two it is, `auto` decides. In both, the
chunks of one call cover the asked
tokens of each layer exactly once, none exceeds `chunk_bytes`, and what is split is split evenly: a tiny last chunk
would cost a message and a credit of its own for almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby, pairwise

from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape


@dataclass(frozen=True, slots=True)
class Chunk:
    """One DATA message: all parts and heads of `layers` for `tokens`, at most `chunk_bytes` raw.

    layer, layer_count: global number of the first layer, and how many follow each other (1 when layer-wise).
    token_start, token_stop: half-open range of positions in the prompt.
    exact: must go with an exact method (it holds first or last tokens, under a lossy method).
    raw_bytes: size in the canonical order of `kvferry_runtime.layout`.
    """

    sequence: int
    layer: int
    layer_count: int
    token_start: int
    token_stop: int
    exact: bool
    raw_bytes: int


def layer_chunks(
    layout: KvLayout,
    layer: int,
    token_start: int,
    token_stop: int,
    total_tokens: int,
    chunk_bytes: int,
    lossy: bool,
    keep_exact_first: int,
    keep_exact_last: int,
    first_sequence: int,
    *,
    apart: bool = True,
) -> list[Chunk]:
    """Chunks of one layer (global number) for tokens that just became final, in order of position.

    total_tokens: of the whole prompt; the exact tokens of a lossy method are counted from its two ends.
    chunk_bytes: upper bound of a chunk's raw bytes.
    first_sequence: sequence number of the first chunk returned; the others follow without gaps.
    apart: exact tokens share no chunk with others. Otherwise a chunk that holds one of them is exact as a whole.

    Raises:
        LayoutError: the layer is not held here, the range is not within the prompt, or one token of the layer
            exceeds `chunk_bytes`.
    """
    if not 0 <= token_start <= token_stop <= total_tokens:
        raise LayoutError(f"tokens {token_start} to {token_stop} do not lie within a prompt of {total_tokens} tokens")
    shape = layout.shape(layer)
    sequences = count(first_sequence)
    keep = _Keep(total_tokens, lossy, keep_exact_first, keep_exact_last, apart)
    return [
        chunk
        for start, stop in keep.parts(shape, token_start, token_stop)
        for chunk in _run_chunks(shape, range(layer, layer + 1), start, stop, keep, chunk_bytes, sequences)
    ]


def request_chunks(
    layout: KvLayout,
    total_tokens: int,
    chunk_bytes: int,
    lossy: bool,
    keep_exact_first: int,
    keep_exact_last: int,
    *,
    apart: bool = True,
    token_start: int = 0,
    token_stop: int | None = None,
    first_sequence: int = 0,
) -> list[Chunk]:
    """Chunks of every layer held here for a range of a prompt (all of it if nothing is said), in order of layers.

    A chunk holds several layers only if they follow each other and have the same shape, and then all of them for the
    same tokens. apart, first_sequence: as in `layer_chunks`.

    Raises:
        LayoutError: one token of a layer exceeds `chunk_bytes`.
    """
    sequences = count(first_sequence)
    stop = total_tokens if token_stop is None else token_stop
    keep = _Keep(total_tokens, lossy, keep_exact_first, keep_exact_last, apart)
    chunks: list[Chunk] = []
    for shape, run in groupby(layout.layers, key=layout.shape):
        layers = list(run)
        held = range(layers[0], layers[-1] + 1)
        for first, last in keep.parts(shape, token_start, stop):
            chunks += _run_chunks(shape, held, first, last, keep, chunk_bytes, sequences)
    return chunks


@dataclass(frozen=True, slots=True)
class _Keep:
    """Tokens of a prompt that a lossy method must leave exact, counted from both ends.

    apart: they get chunks of their own.
    """

    tokens: int
    lossy: bool
    first: int
    last: int
    apart: bool

    @property
    def free(self) -> range:
        """The tokens that need not be exact."""
        return range(min(self.first, self.tokens), self.tokens - self.last)

    def touches(self, shape: LayerShape, start: int, stop: int) -> bool:
        """Whether one of these tokens must stay exact."""
        if not self.lossy:
            return False
        return shape.dtype is KvDtype.UINT8 or start < self.free.start or stop > self.free.stop

    def parts(self, shape: LayerShape, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The range, cut where exact tokens end and begin if they go apart."""
        cuts = {start, stop}
        if self.lossy and self.apart and shape.dtype is not KvDtype.UINT8 and self.free:
            cuts |= {cut for cut in (self.free.start, self.free.stop) if start < cut < stop}
        return pairwise(sorted(cuts))


def _run_chunks(
    shape: LayerShape,
    layers: range,
    token_start: int,
    token_stop: int,
    keep: _Keep,
    chunk_bytes: int,
    sequences: Iterator[int],
) -> Iterator[Chunk]:
    """Chunks of layers of one shape for one range: whole layers together if they fit, else tokens of one layer."""
    if shape.bytes_per_token > chunk_bytes:
        raise LayoutError(
            f"one token of layer {layers.start} has {shape.bytes_per_token} bytes, a chunk holds {chunk_bytes}: "
            f"set transfer.overlap.chunkBytes to at least {shape.bytes_per_token}"
        )
    layers_together = max(1, chunk_bytes // ((token_stop - token_start) * shape.bytes_per_token))
    tokens_together = chunk_bytes // shape.bytes_per_token if layers_together == 1 else token_stop - token_start
    for first, last in _even_parts(layers.start, layers.stop, layers_together):
        for start, stop in _even_parts(token_start, token_stop, tokens_together):
            yield Chunk(
                sequence=next(sequences),
                layer=first,
                layer_count=last - first,
                token_start=start,
                token_stop=stop,
                exact=keep.touches(shape, start, stop),
                raw_bytes=(last - first) * (stop - start) * shape.bytes_per_token,
            )


def _even_parts(start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """Cut a range into as few parts of at most `limit` as possible, whose sizes differ by one at most."""
    total = stop - start
    parts = -(-total // limit)
    for part in range(parts):
        yield start + total * part // parts, start + total * (part + 1) // parts
