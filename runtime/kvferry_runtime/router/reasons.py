"""Why a request was routed as it was, why it failed, what a canary found. Bounded sets: they are metric labels."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How many engines work on a request: prefill and decode, or one alone."""

    DISAGGREGATED = "disaggregated"
    AGGREGATED = "aggregated"


class RouteReason(StrEnum):
    """What became of an answered request; each is counted under exactly one."""

    DISAGGREGATED = "disaggregated"
    """Prefilled by one group, decoded by another."""
    CACHED = "cached"
    """Sent to both, but the decode engine held the prompt already: nothing had to be moved."""
    RECOMPUTED = "recomputed"
    """Sent to both, but the decode engine computed the prompt itself; its result says why."""
    SHORT_PROMPT = "short_prompt"
    """Below the least prompt length: decode alone is quicker."""
    DISABLED = "disabled"
    """Disaggregation is switched off."""
    NO_PREFILL = "no_prefill"
    """No prefill group is ready."""
    NO_PAIR = "no_pair"
    """Prefill and decode groups are ready, but none of the same revision."""
    PREFILL_FAILED = "prefill_failed"
    """The prefill group did not answer or failed before the first token."""


class FailureReason(StrEnum):
    """Why a request got no (whole) answer; each failed request is counted under exactly one."""

    BAD_REQUEST = "bad_request"
    """The router refused it."""
    ENGINE_REFUSED = "engine_refused"
    """An engine refused it as the client's mistake (4xx)."""
    OVERLOADED = "overloaded"
    """As many requests at a time as the router carries."""
    NO_GROUPS = "no_groups"
    """No decode group is ready, or no pair under a policy that allows no other way."""
    PREFILL_FAILED = "prefill_failed"
    """Prefill failed, and the policy is Fail."""
    DECODE_UNREACHABLE = "decode_unreachable"
    """The decode engine could not be reached, or went away before it answered."""
    DECODE_FAILED = "decode_failed"
    """The decode engine answered with an error."""
    DECODE_LOST = "decode_lost"
    """The decode engine went away in the middle of an answer."""
    DEADLINE = "deadline"
    """An engine was silent for too long."""
    BAD_ANSWER = "bad_answer"
    """An engine's answer could not be read, or its tokens had a gap."""
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105
    """Prefill and decode disagree about the first token."""
    CLIENT_GONE = "client_gone"
    """The client went away before the answer was complete."""
    CLIENT_STALLED = "client_stalled"
    """The client stopped reading."""
    SHUTDOWN = "shutdown"
    """The router stopped, and the answer took longer than the drain."""
    INTERNAL = "internal"
    """A defect; the log has the traceback."""


class Finding(StrEnum):
    """Result of a canary."""

    VERIFIED = "verified"
    """Both ends committed, and counted the same bytes with the same digest."""
    FAILED = "failed"
    """The KV did not cross, or not as it should."""
    UNDECIDED = "undecided"
    """It says nothing of the transfer: an engine did not answer, say."""
