"""Which KV heads go from which rank of prefill to which rank of decode, where both are tensor-parallel. Pure.

Each rank holds equally many KV heads, one behind the other in order. With more ranks than heads each head is held by
several ranks that follow each other (its *replicas*), which is how engines lay out grouped-query attention. A latent
cache (one part, one head) is the case of one head that every rank has.

With 8 heads of 256 bytes, 4 ranks of prefill and 2 of decode, for each row of a token's K or V:

    prefill rank   heads    bytes there     decode rank   bytes there
    0              0, 1     0 to 511        0             0 to 511
    1              2, 3     0 to 511        0             512 to 1023
    2              4, 5     0 to 511        1             0 to 511
    3              6, 7     0 to 511        1             512 to 1023

With 2 heads, 4 ranks of prefill and 8 of decode:

    prefill rank   head     bytes there     decode rank   bytes there
    0, 1           0        0 to 255        0 1, 2 3      0 to 255
    2, 3           1        0 to 255        4 5, 6 7      0 to 255
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import MAX_HEADS

MAX_RANKS = 1024


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """How the KV heads of a model lie on the ranks of one role. heads: of the model, at least 1.

    Raises:
        LayoutError: some ranks would hold more than others, or parts of heads.
    """

    heads: int
    ranks: int

    def __post_init__(self) -> None:
        if not 1 <= self.heads <= MAX_HEADS or not 1 <= self.ranks <= MAX_RANKS:
            raise LayoutError(
                f"{self.heads} KV heads on {self.ranks} ranks: allowed are 1 to {MAX_HEADS} heads, "
                f"1 to {MAX_RANKS} ranks"
            )
        if max(self.heads, self.ranks) % min(self.heads, self.ranks):
            raise LayoutError(
                f"{self.heads} KV heads cannot lie on {self.ranks} ranks: "
                "the number of ranks must divide that of heads, or be a multiple of it"
            )

    @property
    def replicas(self) -> int:
        """How many ranks hold each head."""
        return max(1, self.ranks // self.heads)

    def held(self, rank: int) -> range:
        """Heads of this rank, numbers in the model."""
        each = max(1, self.heads // self.ranks)
        first = rank // self.replicas * each
        return range(first, first + each)

    def holder(self, head: int, replica: int) -> int:
        """The rank that holds this replica of a head."""
        return head * self.replicas + replica if self.ranks >= self.heads else head * self.ranks // self.heads


@dataclass(frozen=True, slots=True)
class HeadMove:
    """Heads (numbers in the model) that one rank of prefill sends to one rank of decode.

    prefill_head, decode_head: place of the first of them among the heads of either rank.
    """

    prefill_rank: int
    decode_rank: int
    heads: range
    prefill_head: int
    decode_head: int

    def source(self, head_bytes: int) -> range:
        """Which bytes of a row of a token (all heads of the rank, one behind the other) prefill reads.

        head_bytes: of one head of one token, head_dim x item size.
        """
        return _bytes(self.prefill_head, len(self.heads), head_bytes)

    def target(self, head_bytes: int) -> range:
        """Which bytes of a row decode writes; as many as `source`."""
        return _bytes(self.decode_head, len(self.heads), head_bytes)


def head_moves(kv_heads: int, prefill_ranks: int, decode_ranks: int) -> Sequence[HeadMove]:
    """Everything that must go, by rank of decode and head: each head of each rank of decode exactly once.

    Where several ranks of prefill hold a head, the replicas of it in decode are spread over them, so that none sends
    more than its share, and the same numbers always give the same moves: both sides compute them by themselves.

    Raises:
        LayoutError: the heads cannot lie on so many ranks; names all three numbers.
    """
    try:
        prefill, decode = HeadSplit(kv_heads, prefill_ranks), HeadSplit(kv_heads, decode_ranks)
    except LayoutError as error:
        raise LayoutError(f"{prefill_ranks} ranks of prefill and {decode_ranks} of decode: {error}") from error
    moves: list[HeadMove] = []
    for decode_rank in range(decode_ranks):
        replica = decode_rank % decode.replicas * prefill.replicas // decode.replicas
        wanted = decode.held(decode_rank)
        head = wanted.start
        while head < wanted.stop:
            owner = prefill.holder(head, replica)
            held = prefill.held(owner)
            stop = min(held.stop, wanted.stop)
            moves.append(HeadMove(owner, decode_rank, range(head, stop), head - held.start, head - wanted.start))
            head = stop
    return moves


def _bytes(first_head: int, heads: int, head_bytes: int) -> range:
    return range(first_head * head_bytes, (first_head + heads) * head_bytes)
