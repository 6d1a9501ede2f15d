"""What a person is told about a pod: the cause, named, in words that do not change while it stays the cause."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry_operator.status.pods import Outlook, last_line, steady, trouble

NEEDS_HELP, PASSES, WAITS = Outlook.NEEDS_HELP, Outlook.PASSES, Outlook.WAITS


def pod(*containers: dict[str, Any], **parts: Any) -> dict[str, Any]:
    spec = {
        "nodeName": "n1",
        "containers": [{"name": "engine", "resources": {"limits": {"memory": "8Gi"}}}, {"name": "kvferry-sidecar"}],
    }
    return {
        "metadata": {"name": "d-0", "labels": {"kvferry.io/role": "decode"}, **parts.pop("metadata", {})},
        "spec": spec | parts.pop("spec", {}),
        "status": {"phase": "Pending", "conditions": [], "containerStatuses": list(containers), **parts},
    }


def container(state: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    return {
        "name": "engine",
        "image": "reg/engine:1",
        "ready": False,
        "state": state or {},
        "lastState": last or {},
    } | parts


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


def unschedulable(message: str) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(conditions=[scheduled])


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CASES: dict[str, tuple[dict[str, Any], str, Outlook, list[str]]] = {
    "no such image": (
        pod(container(waiting("ErrImagePull", "rpc error: code = NotFound"))),
        "ImagePullBackOff",
        NEEDS_HELP,
        ["reg/engine:1", "imagePullSecrets"],
    ),
    "no such image, tried again": (
        pod(container(waiting("ImagePullBackOff", "Back-off pulling image"))),
        "ImagePullBackOff",
        NEEDS_HELP,
        ["reg/engine:1"],
    ),
    "image of no legal name": (
        pod(container(waiting("InvalidImageName"))),
        "InvalidImageName",
        NEEDS_HELP,
        ["reg/engine:1"],
    ),
    "image that is not there and not pulled": (
        pod(container(waiting("ErrImageNeverPull"))),
        "ErrImageNeverPull",
        NEEDS_HELP,
        ["reg/engine:1", "Never"],
    ),
    "missing secret": (
        pod(container(waiting("CreateContainerConfigError", 'secret "hf-token" not found'))),
        "CreateContainerConfigError",
        NEEDS_HELP,
        ["engine", "hf-token"],
    ),
    "missing key of a ConfigMap": (
        pod(
            container(
                waiting("CreateContainerConfigError", "couldn't find key a in ConfigMap models/tiny-decode-2f03b998")
            )
        ),
        "CreateContainerConfigError",
        NEEDS_HELP,
        ["ConfigMap models/tiny-decode-2f03b998"],
    ),
    "no RDMA device on any node": (
        unschedulable(
            "0/3 nodes are available: 1 node(s) had untolerated taint {gpu: true}, 2 Insufficient rdma/hca. "
            "preemption: 0/3 nodes are available: 3 No preemption victims found."
        ),
        "Unschedulable",
        WAITS,
        ["too little rdma/hca", "untolerated taint"],
    ),
    "missing claim": (
        unschedulable('0/1 nodes are available: persistentvolumeclaim "weights" not found.'),
        "Unschedulable",
        WAITS,
        ['"weights" not found'],
    ),
    "crashed once": (
        pod(container(RUNNING, ended(1, "line 1\nKeyError: 'hidden_size'\n"), restartCount=1)),
        "CrashLoopBackOff",
        PASSES,
        ["exit code 1", "KeyError: 'hidden_size'"],
    ),
    "crashes again and again": (
        pod(container(waiting("CrashLoopBackOff"), ended(2, "no model"), restartCount=3)),
        "CrashLoopBackOff",
        NEEDS_HELP,
        ["exit code 2: no model"],
    ),
    "crashed without a word": (
        pod(container(ended(137))),
        "CrashLoopBackOff",
        PASSES,
        ["kubectl logs --previous -c engine"],
    ),
    "too little memory": (
        pod(container(waiting("CrashLoopBackOff"), ended(137, "", "OOMKilled"), restartCount=9)),
        "OOMKilled",
        NEEDS_HELP,
        ["8Gi", "spec.decode.resources"],
    ),
    "sidecar with too little memory": (
        pod(container(ended(137, "", "OOMKilled"), name="kvferry-sidecar")),
        "OOMKilled",
        PASSES,
        ["node ran out of memory", "spec.sidecar.resources"],
    ),
    "evicted": (pod(phase="Failed", reason="Evicted", message="low on disk"), "Evicted", PASSES, ["low on disk"]),
    "probe": (
        pod(container(RUNNING, started=True)),
        "ProbeNotPassing",
        WAITS,
        ["engine", "readiness probe"],
    ),
    "loads its model": (pod(container(RUNNING, started=False)), "Starting", PASSES, ["engine is starting"]),
    "volumes": (
        pod(
            container(waiting("ContainerCreating")),
            spec={
                "volumes": [{"secret": {"secretName": "tiny-key"}}, {"persistentVolumeClaim": {"claimName": "weights"}}]
            },
        ),
        "Starting",
        PASSES,
        ["Secret tiny-key", "claim weights"],
    ),
    "init container that did its work": (
        pod(container(RUNNING, started=False), initContainerStatuses=[container(ended(0), name="copy")]),
        "Starting",
        PASSES,
        ["copy"],
    ),
    "lost node": (
        pod(conditions=[{"type": "Ready", "status": "Unknown"}]),
        "NodeLost",
        WAITS,
        ["node n1 does not answer"],
    ),
    "cannot end, its node is lost": (
        pod(metadata={"deletionTimestamp": "x"}, conditions=[{"type": "Ready", "status": "Unknown"}]),
        "NodeLost",
        WAITS,
        ["being deleted", "n1"],
    ),
    "cannot end, somebody holds it": (
        pod(metadata={"deletionTimestamp": "x", "finalizers": ["a/b"]}),
        "Terminating",
        WAITS,
        ["a/b"],
    ),
    "drains": (pod(metadata={"deletionTimestamp": "x"}), "Terminating", PASSES, ["drains"]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cause_is_named(case: str) -> None:
    """Case 12."""
    given, reason, outlook, parts = CASES[case]
    found = trouble(given)
    assert found is not None and (found.reason, found.outlook) == (reason, outlook)
    for part in parts:
        assert part in found.message


def test_a_ready_pod_has_no_trouble() -> None:
    assert trouble(pod(conditions=[{"type": "Ready", "status": "True"}])) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (container(waiting("ErrImagePull", "code = NotFound")), container(waiting("ImagePullBackOff", "Back-off"))),
        (
            container(
                waiting("CrashLoopBackOff", "back-off 10s"), ended(1, "2026-01-01T00:00:00Z boom"), restartCount=4
            ),
            container(RUNNING, ended(1, "2026-01-01T00:09:00.123Z boom"), restartCount=5),
        ),
        (
            container(ended(1, "boom"), restartCount=6),
            container(waiting("CrashLoopBackOff"), ended(1, "boom"), restartCount=6),
        ),
    ],
)
def test_what_the_kubelet_says_in_turns_is_told_in_the_same_words(first: Any, second: Any) -> None:
    assert trouble(pod(first)) == trouble(pod(second))


def test_counts_and_order_of_nodes_change_no_message() -> None:
    messages = {
        getattr(trouble(unschedulable(text)), "message", "")
        for text in (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient rdma/hca.",
            "0/9 nodes are available: 4 Insufficient rdma/hca, 5 Insufficient cpu.",
        )
    }
    assert messages == {"cannot be placed on any node: too little cpu, rdma/hca"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("a\nb\n\n", "b"),
        ('{"level": "error", "message": "spec is wrong"}', "spec is wrong"),
        ("[1, 2]", "[1, 2]"),
        ('{"other": 1}', '{"other": 1}'),
        ("\x1b[31mred\x00", "[31mred"),
    ],
)
def test_the_last_line_of_a_log(text: str, expected: str) -> None:
    assert last_line(text) == expected


def test_ids_and_times_are_left_out_and_names_are_kept() -> None:
    text = (
        "2026-01-02 03:04:05,678 a 0123456789abcdef0123 of 11111111-2222-3333-4444-555555555555: tiny-2f03b998 at 0x7f"
    )
    assert steady(text) == "a … of …: tiny-2f03b998 at …"
    assert len(steady("x" * 5000)) == 300
