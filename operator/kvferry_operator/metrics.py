"""What the operator counts. Labels hold kinds, results and the names of models; never pods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvferry_operator.desired.settings import release
from kvferry_operator.errors import ClusterError, Conflict, Forbidden, Refused, Throttled
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.schedule import Key

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

WATCHED = (kinds.MODEL, *kinds.CHILDREN, kinds.POD)
WRITTEN = (kinds.MODEL, *kinds.CHILDREN, kinds.POD, kinds.SECRET, kinds.EVENT)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Outcome(StrEnum):
    """Of one request that writes, or of the decision against it."""

    APPLIED = "applied"
    SCALED = "scaled"
    REMOVED = "removed"
    FOREIGN = "foreign"
    REFUSED = "refused"
    FORBIDDEN = "forbidden"
    CONFLICT = "conflict"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"

    @classmethod
    def of(cls, error: ClusterError) -> Outcome:
        for kind, outcome in (
            (Refused, cls.REFUSED),
            (Forbidden, cls.FORBIDDEN),
            (Conflict, cls.CONFLICT),
            (Throttled, cls.THROTTLED),
        ):
            if isinstance(error, kind):
                return outcome
        return cls.UNREACHABLE


class PassResult(StrEnum):
    """Of one pass. gone: there is no such object any more. defect: an error that nobody foresaw."""

    OK = "ok"
    PAUSED = "paused"
    INVALID = "invalid"
    GONE = "gone"
    FAILED = "failed"
    DEFECT = "defect"


class Metrics:
    """Its own registry, so that two operators in one process do not share anything."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "kvferry_operator_reconcile_duration_seconds", "One pass", buckets=_SECONDS, registry=self.registry
        )
        self._passes = self._counter("reconcile", "Passes, by how they ended", "result")
        self._writes = self._counter("apply", "Objects written, removed or left to their owner", "kind", "result")
        self._missed = self._counter(
            "watch_missed", "Objects that a list showed as changed and a watch had not told of", "kind"
        )
        self._listed = self._gauge("last_list_timestamp_seconds", "When a kind was last read as a whole", "kind")
        self._ready = self._gauge("model_ready", "1 when the object's condition Ready is True", "namespace", "name")
        self.leader = self._gauge("leader", "1 when this replica holds the lease, or needs none")
        self.crd_outdated = self._gauge("crd_outdated", "1 when the CRD in the cluster is not the one of this release")
        build = self._gauge("build_info", "Always 1; the release is the label", "version")
        build.labels(release()).set(1)
        for result in PassResult:
            self._passes.labels(result.value)
        for kind in WRITTEN:
            for outcome in Outcome:
                self._writes.labels(kind.kind, outcome.value)
        for kind in WATCHED:
            self._missed.labels(kind.kind)
            self._listed.labels(kind.kind)

    def watch_queue(self, depth: Callable[[], int]) -> None:
        """Have the queue's length read when it is asked for."""
        self._gauge("queue_depth", "Keys that wait for their time or a worker").set_function(depth)

    def passed(self, result: PassResult, seconds: float) -> None:
        self._passes.labels(result.value).inc()
        self.seconds.observe(seconds)

    def wrote(self, kind: Kind, outcome: Outcome) -> None:
        self._writes.labels(kind.kind, outcome.value).inc()

    def listed(self, kind: Kind, unix_seconds: float, missed: int) -> None:
        self._listed.labels(kind.kind).set(unix_seconds)
        self._missed.labels(kind.kind).inc(missed)

    def ready(self, key: Key, is_ready: bool) -> None:
        self._ready.labels(*key).set(is_ready)

    def forget(self, key: Key) -> None:
        """A model that is gone has no series."""
        with suppress(KeyError):
            self._ready.remove(*key)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kvferry_operator_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"kvferry_operator_{name}", text, labels, registry=self.registry)
