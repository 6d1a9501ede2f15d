"""Names of children are legal for every legal name of an object, stable, and never shared by two objects."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvferry_operator.api import names
from kvferry_operator.api.constraints import DNS_SUBDOMAIN

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
# one letter of the class is enough to reach every branch, and keeps generation quick
OBJECT_NAMES = st.from_regex(DNS_SUBDOMAIN, fullmatch=True).map(str.strip).filter(lambda name: 0 < len(name) <= 253)
LONGEST = {"role": "prefill", "revision": "0123abcd", "index": 63}


def children(name: str) -> list[str]:
    return [
        names.stage(name, **LONGEST),  # type: ignore[arg-type]
        names.router(name),
        names.key(name),
        names.network_policy(name),
        *(names.budget(name, role) for role in ("prefill", "decode", "router")),
    ]


@given(OBJECT_NAMES)
def test_every_child_has_a_legal_name(name: str) -> None:
    for child in children(name):
        assert DNS_1035.fullmatch(child) and len(child) <= 63, child
    # a pod of a StatefulSet carries the label <name>-<10 characters>
    assert len(names.stage(name, **LONGEST)) <= 52  # type: ignore[arg-type]
    for value in names.labels(name, "decode").values():
        assert LABEL_VALUE.fullmatch(value) and len(value) <= 63


@given(OBJECT_NAMES, OBJECT_NAMES)
def test_two_objects_never_share_a_child(one: str, other: str) -> None:
    assume(one != other)
    assert not set(children(one)) & set(children(other))


def test_dots_and_dashes_are_told_apart() -> None:
    assert names.base("m.1") != names.base("m-1") == "m-1"


def test_a_name_made_to_look_like_a_short_form_is_not_mistaken_for_it() -> None:
    assert names.base(names.base("m.1")) != names.base("m.1")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("smollm2", "smollm2"),
        ("a" * 31, "a" * 31),
        ("llama-3.2-3b", "llama-3-2-3b-30c3f6c6"),
        ("7b", "m-7b-925a7bf1"),
    ],
)
def test_short_forms_are_stable(name: str, base: str) -> None:
    # a change here would rename, and so restart, what runs in clusters
    assert names.base(name) == base


def test_children_of_children_names_do_not_meet() -> None:
    assert not set(children("a")) & set(children("a-router")) & set(children("a-prefill"))


def test_an_autoscaler_counts_one_pod_for_each_decode_group() -> None:
    # and no pod of prefill, router or a second stage, but those of every revision
    assert names.scale_selector("m") == "kvferry.io/model=m,kvferry.io/role=decode,kvferry.io/stage=0"
