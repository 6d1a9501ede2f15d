from types import SimpleNamespace

from kvferry_runtime.engine.reference.request import Request, Stage
from kvferry_runtime.engine.reference.sampling import Sampling
from kvferry_runtime.engine.reference.scheduler import Decode, Prefill, Scheduler


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
    scheduler = Scheduler(4)
    assert scheduler.next() is None
    assert scheduler.admissible(100) is None


def test_requests_are_admitted_in_order_and_a_large_one_is_not_overtaken() -> None:
    scheduler = Scheduler(4)
    large, small = request(160), request(16)
    placed(scheduler, Stage.WAITING, large, small)
    assert scheduler.admissible(9) is None
    assert scheduler.admissible(10) is large
    scheduler.place(large, Stage.PREFILLING)
    assert scheduler.admissible(0) is None
    assert scheduler.admissible(1) is small


def test_no_more_than_allowed_are_admitted_and_held_ones_do_not_count() -> None:
    scheduler = Scheduler(3)
    one, two, three, four = (request() for _ in range(4))
    placed(scheduler, Stage.PARKED, one)
    placed(scheduler, Stage.PREFILLING, two)
    placed(scheduler, Stage.RUNNING, three)
    placed(scheduler, Stage.WAITING, four)
    assert scheduler.admissible(100) is None
    scheduler.place(three, Stage.HELD)
    assert scheduler.admissible(100) is four


def test_prefill_and_decode_take_turns_and_parked_ones_take_none() -> None:
    scheduler = Scheduler(9)
    parked, first, second, running = (request() for _ in range(4))
    placed(scheduler, Stage.PARKED, parked)
    assert scheduler.next() is None
    placed(scheduler, Stage.PREFILLING, first, second)
    placed(scheduler, Stage.RUNNING, running)
    works = [scheduler.next() for _ in range(4)]
    assert works == [Prefill(first), Decode((running,)), Prefill(first), Decode((running,))]
    scheduler.place(first, Stage.RUNNING)
    assert scheduler.next() == Prefill(second)
    assert scheduler.next() == Decode((running, first))


def test_counts_follow_every_move() -> None:
    scheduler = Scheduler(9)
    item = request()
    placed(scheduler, Stage.WAITING, item)
    for stage in (Stage.PARKED, Stage.PREFILLING, Stage.RUNNING, Stage.HELD):
        scheduler.place(item, stage)
        counts = scheduler.counts()
        assert counts[stage] == sum(counts.values()) == 1
    scheduler.place(item, Stage.OVER)
    assert sum(scheduler.counts().values()) == 0
