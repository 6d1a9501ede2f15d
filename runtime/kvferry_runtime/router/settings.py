"""What the router is told at start, and the deadlines that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_contract import ports
from kvferry_contract.config import FailurePolicy, TransportKind
from kvferry_contract.transfer import MAX_DEADLINE_MS
from kvferry_runtime.errors import SettingsError

MAX_TIMEOUT_SECONDS = MAX_DEADLINE_MS / 1000
ENGINE_ALLOWANCE_SECONDS = 30.0
"""Time an engine may need on top of two transfer deadlines (one retry): its queue and a prefill of its own."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """One router's settings, checked.

    endpoints: `file:///path` or `kubernetes://namespace/model`. timeout_seconds: deadline of one transfer.
    drain_seconds: time that running requests get after SIGTERM. max_in_flight: requests at a time; more are refused.
    verify_interval_seconds: within which each group takes part in a canary; 0 sends none. transport: asked for.

    Raises:
        SettingsError: a value is outside its limits.
    """

    served_name: str
    endpoints: str
    host: str = "127.0.0.1"
    port: int = ports.ROUTER
    min_prompt_tokens: int = 0
    failure_policy: FailurePolicy = FailurePolicy.RECOMPUTE
    timeout_seconds: float = 30.0
    drain_seconds: float = 20.0
    disaggregation: bool = True
    max_in_flight: int = 1024
    verify_interval_seconds: float = 0.0
    transport: TransportKind = TransportKind.AUTO

    def __post_init__(self) -> None:
        if not self.served_name:
            raise SettingsError("--served-name is empty: give the name under which clients ask for the model")
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"--port {self.port} is not within 0 to 65535")
        if self.min_prompt_tokens < 0:
            raise SettingsError(f"--min-prompt-tokens {self.min_prompt_tokens} is negative: 0 switches the limit off")
        if not 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS:
            raise SettingsError(
                f"--timeout-seconds {self.timeout_seconds:g} is not above 0 and at most {MAX_TIMEOUT_SECONDS:g}"
            )
        if not 0 <= self.drain_seconds <= MAX_TIMEOUT_SECONDS:
            raise SettingsError(f"--drain-seconds {self.drain_seconds:g} is not within 0 to {MAX_TIMEOUT_SECONDS:g}")
        if not (self.verify_interval_seconds == 0 or 1 <= self.verify_interval_seconds <= MAX_TIMEOUT_SECONDS):
            raise SettingsError(
                f"--verify-interval-seconds {self.verify_interval_seconds:g} is neither 0, which sends no canaries, "
                f"nor within 1 to {MAX_TIMEOUT_SECONDS:g}"
            )

    @property
    def transfer_deadline_ms(self) -> int:
        """The innermost deadline: after it the decode engine recomputes or fails, as the policy says."""
        return max(1, round(self.timeout_seconds * 1000))

    @property
    def silence_seconds(self) -> float:
        """How long an engine may send nothing: longer than its transfer deadlines, so that the engine speaks first."""
        return 2 * self.timeout_seconds + ENGINE_ALLOWANCE_SECONDS

    @property
    def answer_seconds(self) -> float:
        """Limit of an unstreamed answer, in which nothing is heard of the engine until the last token."""
        return max(600.0, self.silence_seconds)
