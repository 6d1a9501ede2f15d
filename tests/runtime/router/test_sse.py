"""Events survive being cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.router import sse

DATA = st.binary(min_size=1, max_size=20).filter(lambda data: b"\n" not in data and b"\r" not in data)


@given(st.lists(DATA, max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 200)))
def test_events_come_out_as_they_went_in(datas: list[bytes], line_end: bytes, cuts: list[int]) -> None:
    stream = b"".join(b": comment%sdata: %s%s%s" % (line_end, data, line_end, line_end) for data in datas)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    splitter = sse.EventSplitter()
    found = [data for low, high in itertools.pairwise(bounds) for data in splitter.feed(stream[low:high])]
    assert found == datas


def test_written_events_can_be_read() -> None:
    assert sse.EventSplitter().feed(sse.event(b"{}") + sse.event(sse.DONE)) == [b"{}", b"[DONE]"]


def test_lines_of_one_event_belong_together() -> None:
    assert sse.EventSplitter().feed(b"event: x\ndata: a\ndata:b\n\nid: 7\n\n") == [b"a\nb"]


def test_an_endless_event_is_refused() -> None:
    splitter = sse.EventSplitter()
    with pytest.raises(sse.EventTooLarge):
        for _ in range(100):
            splitter.feed(b"x" * 100_000)
