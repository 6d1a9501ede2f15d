"""What the store holds, whatever the order in which watches, lists and answers come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.view.packed import Packed
from kvferry_operator.view.store import Store

SERVICE = kinds.CHILDREN[5]
TINY = ("models", "tiny")


def thing(kind: Kind, name: str, version: int, uid: str = "u", labels: dict[str, str] | None = None) -> Packed:
    metadata: dict[str, Any] = {
        "namespace": "models",
        "name": name,
        "uid": uid,
        "resourceVersion": str(version),
        "generation": 1,
        "managedFields": [{"manager": "somebody"}],
    }
    if labels is not None:
        metadata["labels"] = labels
    return Packed.of(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata})


def model(version: int = 1, name: str = "tiny", uid: str = "m") -> Packed:
    return thing(kinds.MODEL, name, version, uid)


def service(version: int, uid: str = "u", name: str = "tiny-router", of: str = "tiny") -> Packed:
    return thing(SERVICE, name, version, uid, {names.LABEL_MODEL: names.base(of)})


def versions(store: Store, key: tuple[str, str] = TINY) -> dict[str, str]:
    return {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in store.children(key)}


@pytest.mark.parametrize(
    ("version", "uid", "known"), [(2, "u", True), (3, "u", False), (1, "u", False), (2, "other", False)]
)
def test_an_echo_is_told_by_version_and_uid(version: int, uid: str, known: bool) -> None:
    store = Store()
    store.put(service(2))
    assert store.has(SERVICE, service(version, uid).unpack()) is known
    assert not store.has(SERVICE, service(2, name="tiny-decode").unpack())


def test_without_numbers_for_versions_nothing_is_an_echo() -> None:
    store = Store()
    store.put(service(0))
    assert not store.has(SERVICE, service(0).unpack())


def test_children_and_pods_are_found_by_their_model() -> None:
    store = Store()
    for packed in (
        model(),
        service(2),
        service(3, "other", "other-router", "other"),
        thing(kinds.POD, "tiny-decode-0", 4, "p", {names.LABEL_MODEL: "tiny"}),
        thing(kinds.DEPLOYMENT, "tiny-router", 5, "d", {names.LABEL_MODEL: "tiny"}),
    ):
        assert store.put(packed)
    assert [each["kind"] for each in store.children(TINY)] == ["Service", "Deployment"], "in the order of applying"
    assert [each["metadata"]["name"] for each in store.pods(TINY)] == ["tiny-decode-0"]
    assert list(store.models()) == [TINY]
    assert store.keys_in(("models", "tiny")) == (TINY,)
    assert "managedFields" not in store.children(TINY)[0]["metadata"]


def test_a_model_with_a_long_name_is_found_by_the_short_form_in_the_label() -> None:
    name = "llama-3.2-3b." + "x" * 60
    store = Store()
    store.put(model(name=name))
    store.put(service(2, of=name))
    assert versions(store, ("models", name)) == {"u": "2"}
    assert store.keys_in(service(2, of=name).family) == (("models", name),)


def test_an_older_version_never_replaces_a_newer_one() -> None:
    store = Store()
    assert store.put(service(9))
    assert not store.put(service(7))
    assert not store.put(service(9)), "the echo of what is known is no news"
    assert versions(store) == {"u": "9"}


def test_what_is_gone_does_not_come_back_by_a_late_answer() -> None:
    store = Store()
    store.put(service(5))
    assert store.drop(service(8))
    assert not store.put(service(7)), "the answer to an apply that was made before it was deleted"
    assert versions(store) == {}


def test_a_label_that_is_taken_off_and_put_on_again_is_followed() -> None:
    store = Store()
    store.put(service(5))
    assert store.drop(service(6)), "a watch by label tells that as a deletion"
    assert store.put(service(7)), "the same object, healed by us"
    assert versions(store) == {"u": "7"}


def test_an_object_without_a_label_is_none_of_ours() -> None:
    store = Store()
    assert not store.put(thing(SERVICE, "tiny-router", 3, labels={}))
    store.put(service(4))
    assert store.put(thing(SERVICE, "tiny-router", 5, labels={}))
    assert versions(store) == {}


def test_a_new_object_of_the_same_name_outlives_the_old_one() -> None:
    store = Store()
    store.put(service(5, "old"))
    store.put(service(9, "new"))
    assert not store.drop(service(8, "old")), "told late"
    assert not store.put(service(6, "old"))
    assert versions(store) == {"new": "9"}


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    store = Store()
    for uid in ("a", "b"):
        packed = Packed.of(
            SERVICE,
            {
                "metadata": {
                    "namespace": "models",
                    "name": "tiny-router",
                    "uid": uid,
                    "resourceVersion": "q3",
                    "labels": {names.LABEL_MODEL: "tiny"},
                }
            },
        )
        assert store.put(packed)
    assert versions(store) == {"b": "q3"}


@pytest.mark.parametrize("heard_meanwhile", [False, True])
def test_a_list_shows_what_is_gone_unless_it_was_heard_of_since(heard_meanwhile: bool) -> None:
    store = Store()
    store.put(service(5))
    before = store.snapshot(SERVICE, None)
    if heard_meanwhile:
        store.put(service(6))
        store.put(service(7, "new", "tiny-new"))
    gone = store.vanished(before, [])
    assert [packed.uid for packed in gone] == ([] if heard_meanwhile else ["u"])


EVENTS = st.permutations([("put", version) for version in range(1, 6)] + [("drop", 6)])


@given(EVENTS, st.booleans())
def test_whatever_the_order_the_last_version_counts(events: list[tuple[str, int]], comes_back: bool) -> None:
    store = Store()
    for event, version in events:
        if event == "put":
            store.put(service(version))
        else:
            store.drop(service(version))
    if comes_back:
        store.put(service(7))
    assert versions(store) == ({"u": "7"} if comes_back else {})


def test_nothing_is_left_of_a_family_that_is_gone() -> None:
    store = Store()
    for index in range(5000):
        store.put(service(index + 1, f"u{index}", f"tiny-{index}"))
        store.drop(service(index + 1, f"u{index}", f"tiny-{index}"))
    inside = vars(store)
    assert not inside["_objects"] and not inside["_families"]
    assert len(inside["_gone"]) <= 4096
