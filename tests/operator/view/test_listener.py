"""What is heard reaches the store, and only news reach the queue."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.schedule import Key
from kvferry_operator.view.listener import Heard, Listener
from kvferry_operator.view.store import Store

TINY = ("models", "tiny")


class Marks:
    """In place of queue and resync."""

    def __init__(self) -> None:
        self.marked: list[tuple[Key, bool]] = []
        self.asked: list[Kind] = []

    def mark(self, key: Key, after: float = 0.0, *, urgent: bool = False) -> None:
        self.marked.append((key, urgent))

    def ask(self, kind: Kind) -> None:
        self.asked.append(kind)


@pytest.fixture
def marks() -> Marks:
    return Marks()


@pytest.fixture
def listener(marks: Marks) -> Listener:
    return Listener(Store(), cast(Any, marks), cast(Any, marks))


def model(version: int, generation: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "models", "name": "tiny", "uid": "m"}
    return {"metadata": {**metadata, "resourceVersion": str(version), "generation": generation}}


def pod(version: int) -> dict[str, Any]:
    labels = {names.LABEL_MODEL: "tiny"}
    return {
        "metadata": {
            "namespace": "models",
            "name": "p",
            "uid": "p",
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def test_a_model_is_urgent_only_when_its_spec_changed(listener: Listener, marks: Marks) -> None:
    listener.hear(kinds.MODEL, Heard.CHANGED, model(1))
    listener.hear(kinds.MODEL, Heard.CHANGED, model(2))
    listener.hear(kinds.MODEL, Heard.CHANGED, model(3, generation=2))
    assert marks.marked == [(TINY, True), (TINY, False), (TINY, True)]


def test_what_is_known_marks_nothing(listener: Listener, marks: Marks) -> None:
    for _ in range(3):
        listener.hear(kinds.MODEL, Heard.CHANGED, model(1))
    assert marks.marked == [(TINY, True)]


def test_pods_mark_their_model_when_they_change_and_when_they_go(listener: Listener, marks: Marks) -> None:
    listener.hear(kinds.POD, Heard.CHANGED, pod(1))
    assert marks.marked == [], "its model is not known yet, and will be marked when it is"
    listener.hear(kinds.MODEL, Heard.CHANGED, model(2))
    listener.hear(kinds.POD, Heard.CHANGED, pod(3))
    listener.hear(kinds.POD, Heard.DELETED, pod(4))
    assert marks.marked[1:] == [(TINY, False), (TINY, False)]


def test_a_model_that_is_gone_is_marked_once_more(listener: Listener, marks: Marks) -> None:
    listener.hear(kinds.MODEL, Heard.CHANGED, model(1))
    listener.hear(kinds.MODEL, Heard.DELETED, model(2))
    assert [key for key, _ in marks.marked] == [TINY, TINY]


def test_a_watch_that_begins_anew_has_its_kind_compared(listener: Listener, marks: Marks) -> None:
    listener.hear(kinds.POD, Heard.LISTED, pod(1))
    listener.hear(kinds.POD, Heard.CHANGED, pod(2))
    assert marks.asked == [kinds.POD]
