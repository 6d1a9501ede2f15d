"""From an engine's offer to the course of its transfer: what the sidecar adds to what the engine knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvferry_contract.config import OverlapMode, TransferConfig
from kvferry_runtime.auto.course import Course, Proposal
from kvferry_runtime.auto.prefix import Ending
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.ring.messages import Cut, ManifestLayer, Offer
from kvferry_runtime.wire.messages import SealLayer
from kvferry_runtime.wire.outgoing import MAX_CHUNKS
from kvferry_runtime.wire.sender import OutgoingTransfer

AUTO = "auto"
"""In place of a method: the sidecar chooses."""

MAX_BANDS = 64
"""Of one transfer. Each costs a manifest and is looked at once a second; a finer place to end would win little."""


def course_of(offer: Offer, transfer: TransferConfig) -> Course:
    """`transfer` is the object's, the same as the engine's."""
    overlap = {None: OverlapMode.AUTO, True: OverlapMode.LAYERWISE, False: OverlapMode.REQUEST}[offer.layerwise]
    return Course(
        Proposal(
            fixed="" if offer.codec == AUTO else offer.codec,
            methods=[MethodSpeed(item.method, item.ratio, item.encode, item.decode) for item in offer.methods],
            overlap=overlap,
            tokens=max(1, offer.tokens),
            exact_tokens=min(offer.tokens, transfer.keep_exact_first + transfer.keep_exact_last),
            raw_bytes=max(1, offer.estimated_bytes),
            layers=offer.layer_count,
            chunk_bytes=transfer.chunk_bytes,
            compute_seconds=offer.compute_us / 1e6,
            tail_seconds=offer.tail_us / 1e6,
        )
    )


def wants_choice(offer: Offer) -> bool:
    """Whether the engine waits for `Chosen`."""
    return offer.codec == AUTO or offer.layerwise is None


def band_tokens(offer: Offer, resume_tokens: int) -> int:
    """Of the bands in which a transfer goes out so that it can end early; 0: it goes as a whole.

    The smallest multiple of `resume_tokens` that makes at most `MAX_BANDS` of the prompt.
    """
    if offer.codec != AUTO or not 0 < resume_tokens < offer.tokens:
        return 0
    least = -(-offer.tokens // MAX_BANDS)
    return -(-least // resume_tokens) * resume_tokens


def best_cut(
    machine: OutgoingTransfer, course: Course, cuts: Sequence[Cut], bytes_per_second: float | None
) -> Cut | None:
    """Where to end a transfer early, None if it should not or cannot be. bytes_per_second: its share of the link."""
    left = machine.waiting_bytes(MAX_CHUNKS)
    if left is None:
        return None
    possible = {cut.tokens: cut for cut in cuts if machine.waiting_bytes(cut.chunks) is not None}
    endings = [Ending(tokens, machine.waiting_bytes(cut.chunks) or 0) for tokens, cut in possible.items()]
    ending = course.ending(endings, left, bytes_per_second)
    return None if ending is None else possible[ending.tokens]


def seal_layers(layers: Iterable[ManifestLayer]) -> tuple[SealLayer, ...]:
    """The engine's manifest as the peer reads it."""
    return tuple(SealLayer(layer=item.layer, tokens=item.tokens, chunks=item.chunks) for item in layers)
