"""Metrics of one sidecar. All label values exist at 0 from the start; none of them is an id."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvferry_runtime.auto.choice import Choice, Why
from kvferry_runtime.codec.registry import METHODS
from kvferry_runtime.errors import Reason
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.sidecar.records import Direction
from kvferry_runtime.wire.effects import DropReason
from kvferry_runtime.wire.handshake import Refusal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Its own registry, so that two sidecars in one process do not share anything."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.committed = self._counter("transfers_committed", "Transfers that ended well", "direction")
        self.failed = self._counter("transfers_failed", "Transfers that did not", "direction", "reason")
        self.retried = self._counter("transfers_retried", "Further generations that were begun", "direction")
        self.raw_bytes = self._counter("raw_bytes", "KV bytes before encoding, of committed transfers", "direction")
        self.wire_bytes = self._counter("wire_bytes", "Payload bytes of committed transfers", "direction")
        self.chunks = self._counter("chunks", "Chunks of committed transfers", "direction")
        self.resent = self._counter("chunks_resent", "Chunks sent (asked for) again", "direction")
        self.dropped = self._counter("chunks_dropped", "Chunks that arrived and were not used", "reason")
        self.rejected = self._counter("rejected_connections", "Peer connections that were refused", "reason")
        self.dial_failed = self._counter("dial_failures", "Sessions that could not be opened to a peer", "reason")
        self.sessions_lost = self._counter("sessions_lost", "Sessions that broke", "role")
        self.fallbacks = self._counter("transport_fallbacks", "Sessions on lanes of another kind than asked for")
        self.wire_seconds = self._counter("wire_seconds", "Time in which a sent chunk was in flight")
        self.hidden_seconds = self._counter("hidden_wire_seconds", "The part of it behind the forward pass")
        self.chosen = self._counter("method_chosen", "Transfers by their first method, and why", "method", "why")
        self.shortened = self._counter("transfers_shortened", "Transfers of which decode computes the end itself")
        self.checks = self._counter("method_checks", "Chunks decoded at the sender to measure their error", "method")
        self.switched_off = self._counter(
            "method_switched_off", "Checks above maxRelativeError: the layers go exact from then on", "method"
        )
        self.max_relative_error: float | None = None
        """Largest of all checks since the start; None before the first one."""
        self.seconds = Histogram(
            "kvferry_transfer_seconds",
            "From offer or fetch to the end of a committed transfer",
            ["direction"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        for direction in Direction:
            for counter in (
                self.committed, self.retried, self.raw_bytes, self.wire_bytes, self.chunks, self.resent, self.seconds
            ):  # fmt: skip
                counter.labels(direction.value)
            for reason in Reason:
                self.failed.labels(direction.value, reason.value)
        for method in METHODS:
            self.checks.labels(method)
            self.switched_off.labels(method)
            for why in Why:
                self.chosen.labels(method, why.value)
        for drop in DropReason:
            self.dropped.labels(drop.value)
        for refusal in Refusal:
            self.rejected.labels(refusal.value)
        for reason in Reason:
            self.dial_failed.labels(reason.value)
        for role in Direction:
            self.sessions_lost.labels(role.value)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(f"kvferry_{name}", text, registry=self.registry).set_function(value)

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, Callable[[], float]]) -> None:
        """The same, one for each value of a label."""
        gauge = Gauge(f"kvferry_{name}", text, [label], registry=self.registry)
        for key, value in values.items():
            gauge.labels(key).set_function(value)

    def chose(self, choice: Choice) -> None:
        """A transfer is bound to a peer. As with checks: only names of this version are labels."""
        if choice.method in METHODS:
            self.chosen.labels(choice.method, choice.why.value).inc()

    def checked(self, check: Check) -> None:
        """A chunk was decoded at the sender. Names that are no method would be labels without bound."""
        self.max_relative_error = max(self.max_relative_error or 0.0, check.relative_error)
        if check.method in METHODS:
            self.checks.labels(check.method).inc()
            self.switched_off.labels(check.method).inc(int(check.failed))

    def sent(self) -> dict[str, int | float | None]:
        """Totals of the committed transfers that this side sent, by their names in GET /v1/state."""
        label = Direction.SEND.value
        return {
            "sent": int(_value(self.committed, label)),
            "bytes_raw": int(_value(self.raw_bytes, label)),
            "bytes_wire": int(_value(self.wire_bytes, label)),
            "wire_seconds": _value(self.wire_seconds),
            "hidden_seconds": _value(self.hidden_seconds),
            "max_relative_error": self.max_relative_error,
        }

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvferry_{name}", text, labels, registry=self.registry)


def _value(counter: Counter, *labels: str) -> float:
    [family] = counter.collect()
    totals = (sample for sample in family.samples if sample.name.endswith("_total"))
    return next(sample.value for sample in totals if tuple(sample.labels.values()) == labels)
