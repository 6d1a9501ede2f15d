"""What the router counts. Every series is there at 0 from the start; no label holds an id or an address."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group
from kvferry_contract.pairs import PairState
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import FailureReason, Finding, RouteReason

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_STATES = ("ready", "unready", "terminating", "aside")


class RouterMetrics:
    """One router's metrics, in a registry of its own."""

    def __init__(self, served_name: str) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvferry_router_requests", "Answered requests, by what became of them", ["reason"], registry=self.registry
        )
        self.failures = Counter(
            "kvferry_router_failures", "Requests without a whole answer, by cause", ["reason"], registry=self.registry
        )
        self.token_mismatches = Counter(
            "kvferry_router_token_mismatch",
            "Answers stopped because prefill and decode disagreed about the first token",
            registry=self.registry,
        )
        self.decode_retries = Counter(
            "kvferry_router_decode_retries", "Requests sent to another decode group", registry=self.registry
        )
        self.prompt_tokens = Counter("kvferry_router_prompt_tokens", "Tokens of prompts", registry=self.registry)
        self.completion_tokens = Counter(
            "kvferry_router_completion_tokens", "Tokens that clients were given", registry=self.registry
        )
        self.discovery_errors = Counter(
            "kvferry_router_discovery_errors", "Views of the groups that could not be read", registry=self.registry
        )
        self.first_token_seconds = Histogram(
            "kvferry_router_first_token_seconds",
            "Time from the request to its first token, of streamed answers, by the half that gave it",
            ["source"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "kvferry_router_request_seconds", "Time of an answered request", buckets=_SECONDS, registry=self.registry
        )
        self.canaries = Counter(
            "kvferry_router_canaries",
            "Requests of the router's own through a pair of groups, by what they found",
            ["result", "reason"],
            registry=self.registry,
        )
        self.pairs = Gauge(
            "kvferry_router_pairs",
            "Pairs of ready groups, by what their last canary found",
            ["state"],
            registry=self.registry,
        )
        self.in_flight = Gauge("kvferry_router_in_flight", "Requests being served", registry=self.registry)
        self._groups = Gauge(
            "kvferry_router_groups", "Groups, by role and state", ["role", "state"], registry=self.registry
        )
        info = Gauge("kvferry_router_info", "Always 1; the served model", ["served_name"], registry=self.registry)
        info.labels(served_name).set(1)
        for route in RouteReason:
            self.requests.labels(route.value)
        for failure in FailureReason:
            self.failures.labels(failure.value)
        for finding in Finding:
            for reason in Reason if finding is Finding.FAILED else ("",):
                self.canaries.labels(finding.value, str(reason))
        for state in PairState:
            self.pairs.labels(state.value)
        for source in ("prefill", "decode"):
            self.first_token_seconds.labels(source)
        self._count_groups((), frozenset())

    def routed(self) -> dict[str, int]:
        """Answered requests by reason."""
        [family] = self.requests.collect()
        return {
            sample.labels["reason"]: int(sample.value) for sample in family.samples if sample.name.endswith("_total")
        }

    def exposition(self, groups: Iterable[Group], aside: Iterable[str]) -> bytes:
        """Prometheus text format, with the groups as they are now."""
        self._count_groups(groups, frozenset(aside))
        return generate_latest(self.registry)

    def _count_groups(self, groups: Iterable[Group], aside: frozenset[str]) -> None:
        counts = {(role.value, state): 0 for role in Role for state in _STATES}
        for group in groups:
            key = (group.role, group_state(group, aside))
            if key in counts:
                counts[key] += 1
        for (role, state), count in counts.items():
            self._groups.labels(role, state).set(count)


def group_state(group: Group, aside: Iterable[str]) -> str:
    """ready | unready | terminating | aside, as requests see the group."""
    if group.terminating:
        return "terminating"
    if not group.ready:
        return "unready"
    return "aside" if group.engine in aside else "ready"
