"""From EndpointSlices, as the API server sends them, to groups."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvferry_contract.endpoints import Group
from kvferry_runtime.router.group_table import GroupTable
from kvferry_runtime.router.pairing import Alone, Nobody, Pair, Wish
from kvferry_runtime.router.slice_view import SliceView, WatchLost
from kvferry_runtime.router.slices import groups_of

Json = dict[str, Any]
PORTS = [{"name": "http", "port": 8000}, {"name": "peer", "port": 7400}, {"name": "sidecar-http", "port": 7401}]


def endpoint(pod: str, address: str, *, serving: bool | None = True, terminating: bool = False, uid: str = "") -> Json:
    """Ready, as all are whose Service publishes not-ready addresses."""
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "namespace": "models", "name": pod, "uid": uid or f"uid-of-{pod}"},
        "nodeName": "node-1",
    }


def piece(*endpoints: Json, name: str = "", role: str = "decode", stage: int = 0, **changes: Any) -> Json:
    """One slice of a stage's Service."""
    labels = {
        "kvferry.io/model": "small",
        "kvferry.io/role": role,
        "kvferry.io/revision": "r1",
        "kvferry.io/stage": str(stage),
        "kubernetes.io/service-name": f"small-{role}-r1-s{stage}",
    }
    return {
        "metadata": {"name": name or f"small-{role}-r1-s{stage}-x", "resourceVersion": "5", "labels": labels},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": PORTS,
        **changes,
    }


def view(*pieces: Json, version: str = "7") -> SliceView:
    listed = {"kind": "EndpointSliceList", "metadata": {"resourceVersion": version}, "items": list(pieces)}
    return SliceView(json.dumps(listed).encode())


def groups(*pieces: Json, family: str = "IPv4") -> tuple[Group, ...]:
    return groups_of(view(*pieces).slices, family)


def test_a_pod_is_a_group_with_the_addresses_of_its_named_ports() -> None:
    found = groups(
        piece(endpoint("small-decode-r1-s0-2", "10.0.0.2")),
        piece(endpoint("small-prefill-r1-s0-0", "10.0.0.9", serving=False), role="prefill"),
    )
    assert found == (
        Group(
            "decode", 2, "r1", True, False, "10.0.0.2:8000", ("10.0.0.2:7400",), "small-decode-r1-s0-2",
            ("10.0.0.2:7401",),
        ),
        Group(
            "prefill", 0, "r1", False, False, "10.0.0.9:8000", ("10.0.0.9:7400",), "small-prefill-r1-s0-0",
            ("10.0.0.9:7401",),
        ),
    )  # fmt: skip


def test_terminating_unready_and_relabelled_pods_get_no_request() -> None:
    """Case 38: `ready` is true for all of them."""
    table = GroupTable()
    table.replace(
        groups(
            piece(endpoint("small-prefill-r1-s0-0", "10.0.0.9"), role="prefill"),
            piece(
                endpoint("small-decode-r1-s0-0", "10.0.0.1", terminating=True),
                endpoint("small-decode-r1-s0-1", "10.0.0.2", serving=False),
                # the third was relabelled: its Service does not have it any more
            ),
        )
    )
    assert isinstance(table.choose(Wish(alone=None, alone_allowed=True)), Nobody)
    table.replace((*table.groups, *groups(piece(endpoint("small-decode-r1-s0-3", "10.0.0.4")))))
    route = table.choose(Wish(alone=None, alone_allowed=True))
    assert isinstance(route, Pair) and route.decode.pod == "small-decode-r1-s0-3"


def test_an_endpoint_without_conditions_serves() -> None:
    bare = endpoint("small-decode-r1-s0-0", "10.0.0.1") | {"conditions": {}}
    assert [(group.ready, group.terminating) for group in groups(piece(bare))] == [(True, False)]
    unknown = endpoint("small-decode-r1-s0-0", "10.0.0.1", serving=None)
    assert groups(piece(unknown))[0].ready
    unknown["conditions"]["ready"] = False
    assert not groups(piece(unknown))[0].ready


@pytest.mark.parametrize(
    "foreign",
    [
        piece(endpoint("small-router-7d8-x2", "10.0.0.1")) | {"metadata": {"name": "router", "labels": {}}},
        piece(endpoint("small-other-0", "10.0.0.1"), role="other"),
        piece(endpoint("small-decode-r1-s0-0", "a.example"), addressType="FQDN"),
        piece(endpoint("no-number", "10.0.0.1")),
        piece(endpoint("small-decode-r1-s0-0", "10.0.0.1") | {"addresses": []}),
        piece(endpoint("small-decode-r1-s0-0", "10.0.0.1"), ports=[{"name": "other", "port": 1}]),
        piece(endpoint("small-decode-r1-s0-0", "10.0.0.1"), ports=None),
        piece(endpoints=None),
    ],
    ids=["no role", "other role", "names", "no ordinal", "no address", "no http", "no ports", "no endpoints"],
)
def test_what_is_no_group_is_left_out(foreign: Json) -> None:
    good = piece(endpoint("small-decode-r1-s0-1", "10.0.0.2"), name="good")
    assert [group.ordinal for group in groups(foreign, good)] == [1]


def test_a_group_is_ready_when_each_stage_has_a_serving_pod() -> None:
    def prefill(stage: int, *ordinals: int, **changes: Any) -> Json:
        pods = (f"small-prefill-r1-s{stage}-{ordinal}" for ordinal in ordinals)
        return piece(
            *(endpoint(pod, f"10.0.{stage}.{pod[-1]}", **changes) for pod in pods), role="prefill", stage=stage
        )

    whole = groups(prefill(1, 0, 1), prefill(0, 0, 1))
    assert [(group.ordinal, group.ready) for group in whole] == [(0, True), (1, True)]
    assert whole[1].sidecars == ("10.0.0.1:7400", "10.0.1.1:7400")
    assert whole[1].sidecar_http == ("10.0.0.1:7401", "10.0.1.1:7401")
    assert (whole[1].engine, whole[1].pod) == ("10.0.0.1:8000", "small-prefill-r1-s0-1")
    assert [group.ready for group in groups(prefill(0, 0, 1), prefill(1, 0))] == [True, False]
    assert [group.ready for group in groups(prefill(0, 0), prefill(1, 0, serving=False))] == [False]
    assert [group.ready for group in groups(prefill(0, 0), prefill(1))] == [False]
    assert [group.terminating for group in groups(prefill(0, 0), prefill(1, 0, terminating=True))] == [True]
    assert not groups(prefill(0), prefill(1, 0))


def test_a_pod_in_two_slices_counts_once_and_as_the_worse_of_both() -> None:
    pod = "small-decode-r1-s0-0"
    [found] = groups(piece(endpoint(pod, "10.0.0.1"), name="a"), piece(endpoint(pod, "10.0.0.1"), name="b"))
    assert found.ready and not found.terminating
    [found] = groups(
        piece(endpoint(pod, "10.0.0.1", serving=False), name="a"), piece(endpoint(pod, "10.0.0.1"), name="b")
    )
    assert not found.ready
    [found] = groups(
        piece(endpoint(pod, "10.0.0.1"), name="a"), piece(endpoint(pod, "10.0.0.1", terminating=True), name="b")
    )
    assert found.terminating


@pytest.mark.parametrize("order", [1, -1])
def test_a_pod_that_took_the_name_of_an_ending_one_counts_in_its_place(order: int) -> None:
    pod = "small-decode-r1-s0-0"
    pieces = [
        piece(endpoint(pod, "10.0.0.1", terminating=True, uid="old"), name="a"),
        piece(endpoint(pod, "10.0.0.2", uid="new"), name="b"),
    ]
    [found] = groups(*pieces[::order])
    assert (found.engine, found.ready, found.terminating) == ("10.0.0.2:8000", True, False)


def test_of_two_address_families_the_preferred_one_is_taken() -> None:
    pod = "small-decode-r1-s0-0"
    four = piece(endpoint(pod, "10.0.0.1"), name="four")
    six = piece(endpoint(pod, "fd00::1"), name="six", addressType="IPv6")
    assert [group.engine for group in groups(six, four)] == ["10.0.0.1:8000"]
    assert [group.engine for group in groups(six, four, family="IPv6")] == ["[fd00::1]:8000"]
    assert [group.sidecars for group in groups(six)] == [("[fd00::1]:7400",)]


def test_without_a_sidecar_a_group_serves_alone() -> None:
    bare = piece(endpoint("small-decode-r1-s0-0", "10.0.0.1"), ports=PORTS[:1])
    [found] = groups(bare)
    assert (found.sidecars, found.sidecar_http) == ((), ())
    table = GroupTable()
    table.replace((found,))
    assert isinstance(table.choose(Wish(alone=None, alone_allowed=True)), Alone)


def event(kind: str, content: Json) -> bytes:
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def test_a_watch_changes_what_was_listed() -> None:
    known = view(piece(endpoint("small-decode-r1-s0-0", "10.0.0.1"), name="a"), version="41")
    assert known.version == "41"
    assert known.take(event("ADDED", piece(endpoint("small-decode-r1-s0-1", "10.0.0.2"), name="b")))
    assert known.take(event("MODIFIED", piece(endpoint("small-decode-r1-s0-0", "10.0.0.1", serving=False), name="a")))
    assert [group.ready for group in groups_of(known.slices)] == [False, True]
    assert not known.take(event("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": "50"}}))
    assert known.take(event("DELETED", piece(name="a")))
    assert known.take(event("DELETED", piece(name="never seen")))
    assert [group.ordinal for group in groups_of(known.slices)] == [1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}), "410 Expired"),
        (event("SURPRISE", {}), "SURPRISE"),
        (b"{\n", "no event"),
        (b"[]\n", "no event"),
        (b"\xff\xfe\n", "no event"),
        (event("ADDED", {"metadata": {"name": 7}}), "no event"),
        (event("ADDED", {"addressType": "IPv4"}), "no event"),
    ],
)
def test_a_watch_that_cannot_be_followed_is_given_up_and_changes_nothing(line: bytes, said: str) -> None:
    known = view(piece(endpoint("small-decode-r1-s0-0", "10.0.0.1")))
    with pytest.raises(WatchLost, match=said):
        known.take(line)
    assert [group.ready for group in groups_of(known.slices)] == [True]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"items": []}',
        b'{"kind": "Status", "metadata": {}, "items": []}',
        b'{"kind": "EndpointSliceList", "metadata": {}, "items": [{}]}',
    ],
)
def test_a_list_that_cannot_be_read_is_no_empty_one(body: bytes) -> None:
    with pytest.raises(WatchLost, match="cannot be read"):
        SliceView(body)
