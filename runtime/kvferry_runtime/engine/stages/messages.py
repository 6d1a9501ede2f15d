"""What the stages of a group tell each other, as fixed schemas with limits (msgpack; no pickle).

Everything travels in ring direction, 0 → 1 → … → last → 0. Three kinds, which the ring treats differently:

* A `Pass` goes with an activation from stage to stage. Each stage computes passes strictly in the order of arrival and
  sends them on itself; the last one answers with a `Result`.
* A `Command` comes from the first stage and is for every other one. The ring passes it on at once, so that a long pass
  delays no load; hence it overtakes passes that are still being computed. The first stage therefore says `Release` only
  when the results of all passes of that request are back.
* A `Report` is for the first stage. The ring passes it on at once too; stages between do not see it.

Requests have a number that the first stage gives and never reuses, and so have passes.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvferry_contract.transfer import MAX_PEERS

MAX_STAGES = 64
MAX_ROWS = 1024
MAX_TEXT = 256
"""Characters of a name or a reason."""
MAX_LONG_TEXT = 1024
"""Characters of a message for people."""

Number = Annotated[int, Meta(ge=0)]
"""msgpack itself ends at 2^64 - 1."""
Count = Annotated[int, Meta(ge=0, le=2**31)]
Size = Annotated[int, Meta(ge=0, le=2**48)]
StageNumber = Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
Token = Annotated[int, Meta(ge=0, le=2**31)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
LongText = Annotated[str, Meta(max_length=MAX_LONG_TEXT)]


class Sampling(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """As `engine.reference.sampling.Sampling`."""

    temperature: Annotated[float, Meta(ge=0)]
    top_p: Annotated[float, Meta(ge=0, le=1)]
    top_k: Count
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Transfer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `kvferry_contract.transfer.TransferParams`; deadline_ms: what is left of it when this is sent."""

    transfer_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    role: Annotated[str, Meta(pattern="^(prefill|decode)$")]
    peers: Annotated[list[Text], Meta(max_length=MAX_PEERS)]
    deadline_ms: Count


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """reason: a value of `errors.Reason`."""

    reason: Text
    message: LongText


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As `agent.base.LoadResult`, of one stage. first_token: None if none of this stage's peers said it.

    tokens: of a load that was cut short, which happens only where neither role has several stages.
    """

    first_token: Token | None
    chunks: Count
    raw_bytes: Size
    wire_bytes: Size
    kept_tokens: Count | None
    tokens: Count | None = None


class GroupMessage(msgspec.Struct, frozen=True, tag_field="t", forbid_unknown_fields=True):
    """Base of all messages between stages."""


class Command(GroupMessage, frozen=True):
    """From the first stage, for every other one."""


class Report(GroupMessage, frozen=True):
    """For the first stage."""


class Pass(GroupMessage, frozen=True):
    """A forward pass: goes with an activation. number: of this pass, counted by the first stage."""

    number: Number


class Begin(Command, frozen=True, tag="BEGIN"):
    """Every stage is ready, so the group is."""


class Place(Command, frozen=True, tag="PLACE"):
    """Reserve `blocks` KV blocks for a request, and offer or load its KV if there is a transfer.

    kept_tokens: of its `prompt_tokens`, as many as a sparse transfer carries; None for all of them.
    """

    request: Number
    blocks: Count
    prompt_tokens: Count
    transfer: Transfer | None
    kept_tokens: Count | None


class CancelLoad(Command, frozen=True, tag="CANCEL_LOAD"):
    """Stop loading this request's KV; `Loaded` still comes."""

    request: Number
    reason: Text


class CancelSend(Command, frozen=True, tag="CANCEL_SEND"):
    """Stop offering this request's KV; `Sent` still comes."""

    request: Number
    reason: Text


class Release(Command, frozen=True, tag="RELEASE"):
    """Nothing more is computed for this request: give its blocks back."""

    request: Number


class PrefillPass(Pass, frozen=True, tag="PREFILL"):
    """One chunk of a prompt: positions start to stop (exclusive). sampling: with the last chunk, and only then.

    Activation: [stop - start, hidden].
    """

    request: Number
    start: Count
    stop: Count
    sampling: Sampling | None


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One request's next step. cached: tokens its KV holds before it. index: of the token that is to be sampled."""

    request: Number
    position: Count
    cached: Count
    index: Count
    sampling: Sampling


class DecodePass(Pass, frozen=True, tag="DECODE"):
    """The next token of several requests. Activation: [rows with padding, hidden]."""

    rows: Annotated[list[Row], Meta(min_length=1, max_length=MAX_ROWS)]


class Ready(Report, frozen=True, tag="READY"):
    """This stage has loaded its layers. blocks: of its KV cache. rows: of its decode passes."""

    stage: StageNumber
    blocks: Count
    rows: Annotated[int, Meta(ge=1, le=MAX_ROWS)]


class Leaving(Report, frozen=True, tag="LEAVING"):
    """This stage was told to end: the first one takes no new requests, and leaves the ring when none is open."""

    stage: StageNumber


class Result(Report, frozen=True, tag="RESULT"):
    """A pass is over, at every stage. tokens: one for each row, one for the last chunk of a prompt, else none.

    failure: why some stage could not compute it, empty where it could; then the stages behind never saw the pass.
    """

    number: Number
    tokens: Annotated[list[Token], Meta(max_length=MAX_ROWS)]
    failure: LongText = ""


class Loaded(Report, frozen=True, tag="LOADED"):
    """The last word of a stage's agent on loading."""

    stage: StageNumber
    request: Number
    result: Load | None
    failure: Failure | None


class Sent(Report, frozen=True, tag="SENT"):
    """The last word of a stage's agent on an offer."""

    stage: StageNumber
    request: Number
    failure: Failure | None


AnyCommand = Begin | Place | CancelLoad | CancelSend | Release
AnyPass = PrefillPass | DecodePass
AnyReport = Ready | Leaving | Result | Loaded | Sent
AnyMessage = AnyCommand | AnyPass | AnyReport
