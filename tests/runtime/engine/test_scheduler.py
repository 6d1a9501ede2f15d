from collections import Counter
from types import SimpleNamespace

import pytest

from kvferry_runtime.engine.reference.chunks import Span
from kvferry_runtime.engine.reference.request import Request, Stage
from kvferry_runtime.engine.reference.sampling import Sampling
from kvferry_runtime.engine.reference.scheduler import Decode, Prefill, Scheduler, Work


def request(tokens: int = 16) -> Request:
    return Request(
        prompt=[1] * tokens,
        max_tokens=1,
        sampling=Sampling(0, 1, 0, 0),
        end_tokens=frozenset(),
        text=SimpleNamespace(),
        sink=lambda event: None,
        transfer=None,
        arrived=0.0,
    )


def placed(scheduler: Scheduler, stage: Stage, *requests: Request) -> None:
    for item in requests:
        scheduler.place(item, stage)


def test_nothing_to_do() -> None:
    scheduler = Scheduler(4, rows=8, stages=1)
    assert scheduler.next() is None
    assert scheduler.admissible(100) is None


def test_requests_are_admitted_in_order_and_a_large_one_is_not_overtaken() -> None:
    scheduler = Scheduler(4, rows=8, stages=1)
    large, small = request(160), request(16)
    placed(scheduler, Stage.WAITING, large, small)
    assert scheduler.admissible(9) is None
    assert scheduler.admissible(10) is large
    scheduler.place(large, Stage.PREFILLING)
    assert scheduler.admissible(0) is None
    assert scheduler.admissible(1) is small


def test_no_more_than_allowed_are_admitted_and_held_ones_do_not_count() -> None:
    scheduler = Scheduler(3, rows=8, stages=1)
    one, two, three, four = (request() for _ in range(4))
    placed(scheduler, Stage.PARKED, one)
    placed(scheduler, Stage.PREFILLING, two)
    placed(scheduler, Stage.RUNNING, three)
    placed(scheduler, Stage.WAITING, four)
    assert scheduler.admissible(100) is None
    scheduler.place(three, Stage.HELD)
    assert scheduler.admissible(100) is four


def test_prefill_and_decode_take_turns_and_parked_ones_take_none() -> None:
    scheduler = Scheduler(9, rows=8, stages=1)
    parked, first, second, running = (request() for _ in range(4))
    placed(scheduler, Stage.PARKED, parked)
    assert scheduler.next() is None
    placed(scheduler, Stage.PREFILLING, first, second)
    placed(scheduler, Stage.RUNNING, running)
    works = [scheduler.next() for _ in range(4)]
    chunk = Span(0, 16, complete=True)
    assert works == [Prefill(first, chunk), Decode((running,)), Prefill(first, chunk), Decode((running,))]
    scheduler.place(first, Stage.RUNNING)
    assert scheduler.next() == Prefill(second, chunk)
    assert batch_of(scheduler) == {running, first}


def batch_of(scheduler: Scheduler) -> set[Request]:
    work = scheduler.next()
    assert isinstance(work, Decode)
    return set(work.requests)


def begun(scheduler: Scheduler) -> Work | None:
    """The next work, as the engine begins it: without a result for now."""
    work = scheduler.next()
    for item in work.requests if work else ():
        item.under_way += 1
    if isinstance(work, Prefill):
        work.request.computed = work.span.stop
    return work


def test_chunks_of_a_prompt_follow_each_other_without_results() -> None:
    scheduler = Scheduler(9, rows=8, stages=2)
    first, second = request(588), request(16)
    placed(scheduler, Stage.PREFILLING, first, second)
    assert [begun(scheduler) for _ in range(5)] == [
        Prefill(first, Span(0, 256, complete=False)),
        Prefill(first, Span(256, 512, complete=False)),
        Prefill(first, Span(512, 588, complete=True)),
        Prefill(second, Span(0, 16, complete=True)),
        None,
    ]


@pytest.mark.parametrize(("running", "rows", "stages", "batches"), [
    (1, 8, 2, [1]), (2, 8, 2, [1, 1]), (5, 8, 2, [3, 2]), (4, 8, 3, [2, 2]), (8, 8, 4, [2, 2, 2, 2]),
    (20, 4, 2, [4, 4, 4, 4, 4]), (5, 1, 2, [1, 1, 1, 1, 1]),
])  # fmt: skip
def test_requests_that_decode_are_dealt_out_to_all_stages(
    running: int, rows: int, stages: int, batches: list[int]
) -> None:
    scheduler = Scheduler(99, rows, stages)
    placed(scheduler, Stage.RUNNING, *(request() for _ in range(running)))
    works = [begun(scheduler) for _ in batches]
    assert [len(work.requests) for work in works if work] == batches
    assert len({item for work in works if work for item in work.requests}) == running
    assert scheduler.next() is None


def test_a_token_that_is_under_way_is_not_computed_twice_and_nobody_is_forgotten() -> None:
    """More requests than rows, and each pass ends before the next one begins: all make the same number of steps."""
    scheduler = Scheduler(99, rows=4, stages=1)
    requests = [request() for _ in range(10)]
    placed(scheduler, Stage.RUNNING, *requests)
    steps = Counter(item for _ in range(25) for item in batch_of(scheduler))
    assert {steps[item] for item in requests} == {10}


def test_between_two_chunks_everything_that_decodes_makes_one_step() -> None:
    scheduler = Scheduler(99, rows=4, stages=1)
    running = [request() for _ in range(10)]
    placed(scheduler, Stage.PREFILLING, request(2000))
    placed(scheduler, Stage.RUNNING, *running)
    assert isinstance(scheduler.next(), Prefill)
    assert set(running) == {item for _ in range(3) for item in batch_of(scheduler)}
    assert isinstance(scheduler.next(), Prefill)


def test_counts_follow_every_move() -> None:
    scheduler = Scheduler(9, rows=8, stages=1)
    item = request()
    placed(scheduler, Stage.WAITING, item)
    for stage in (Stage.PARKED, Stage.PREFILLING, Stage.RUNNING, Stage.HELD):
        scheduler.place(item, stage)
        counts = scheduler.counts()
        assert counts[stage] == sum(counts.values()) == 1
    scheduler.place(item, Stage.OVER)
    assert sum(scheduler.counts().values()) == 0
