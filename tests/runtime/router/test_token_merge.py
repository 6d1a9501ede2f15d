"""One completion out of two streams, for every split and every order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.router.choice import AnswerError, TokenMismatch
from kvferry_runtime.router.first_token import FirstToken
from kvferry_runtime.router.openai import Api
from kvferry_runtime.router.token_merge import TokenMerge

LETTERS = "aé中"


def first_token(token_id: int | None = 1, text: str = "a", finish: str | None = "length") -> FirstToken:
    return FirstToken(token_id, text, finish, None, None)


def choice(index: int, ids: list[int], text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "token_ids": ids, "token_index": index, "finish_reason": finish}


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[str], list[dict[str, Any]], int, str]:
    """ids, texts of the tokens, decode's choices, when prefill answers, and prefill's text."""
    count = draw(st.integers(1, 8))
    ids = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    texts = [draw(st.text(LETTERS, max_size=3)) for _ in range(count)]
    begin = draw(st.integers(0, 1)) if count > 1 else 0
    cuts = sorted(draw(st.sets(st.integers(begin + 1, count)))) if count > begin else []
    bounds = [begin, *[cut for cut in cuts if cut < count], count]
    choices, said = [], sum(map(len, texts[:begin]))
    whole = "".join(texts)
    for low, high in itertools.pairwise(bounds):
        # text may be handed out later than its token, never earlier; all of it at the end
        reach = sum(map(len, texts[:high]))
        upto = len(whole) if high == count else draw(st.integers(said, reach))
        choices.append(choice(low, ids[low:high], whole[said:upto]))
        said = upto
    choices.append({"index": 0, "text": "", "finish_reason": "stop"})
    moment = 0 if begin else draw(st.integers(0, len(choices)))
    return ids, texts, choices, moment, texts[0]


@given(streams())
def test_every_token_and_every_letter_comes_once_in_order(
    made: tuple[list[int], list[str], list[dict[str, Any]], int, str],
) -> None:
    ids, texts, choices, moment, first_text = made
    merge = TokenMerge(Api.COMPLETIONS, ())
    out: list[dict[str, Any]] = []
    for number, item in enumerate(choices):
        if number == moment:
            out += merge.offer_first(first_token(ids[0], first_text))
        assert not merge.needs_first(item)
        out += merge.take(item)
    assert [token for item in out for token in item.get("token_ids", [])] == ids
    assert "".join(item["text"] for item in out) == "".join(texts)
    assert [item["token_index"] for item in out if item.get("token_ids")] == [
        sum(len(earlier.get("token_ids", [])) for earlier in out[:number])
        for number, item in enumerate(out)
        if item.get("token_ids")
    ]
    assert merge.delivered == len(ids)


@given(streams(), st.integers(10, 20))
def test_another_first_token_never_goes_through(
    made: tuple[list[int], list[str], list[dict[str, Any]], int, str], other: int
) -> None:
    _, _, choices, moment, first_text = made
    if choices[0].get("token_index") != 0:
        return
    merge = TokenMerge(Api.COMPLETIONS, ())
    with pytest.raises(TokenMismatch):
        for number, item in enumerate(choices):
            if number == moment:
                merge.offer_first(first_token(other, first_text))
            merge.take(item)
        merge.check_first(first_token(other, first_text))


def test_decode_that_begins_with_the_second_token_waits_for_prefill() -> None:
    merge = TokenMerge(Api.COMPLETIONS, ())
    assert merge.needs_first(choice(1, [2], "b"))
    assert not merge.needs_first(choice(0, [1], "a"))
    with pytest.raises(AnswerError, match="token 1 where 0"):
        merge.take(choice(1, [2], "b"))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        pytest.param([choice(0, [1], "a"), choice(2, [3], "c")], "token 2 where 1", id="gap"),
        pytest.param([choice(0, [1], "a"), choice(0, [1], "a")], "token 0 where 1", id="twice"),
        pytest.param([choice(0, [1, 2], "ab"), choice(1, [2], "b")], "token 1 where 2", id="overlap"),
        pytest.param([choice(0, ["x"], "a")], "not a list of integers", id="ids"),
        pytest.param([choice(-1, [1], "a")], "natural number", id="index"),
    ],
)
def test_tokens_that_do_not_follow_are_refused(choices: list[dict[str, Any]], said: str) -> None:
    merge = TokenMerge(Api.COMPLETIONS, ())
    with pytest.raises(AnswerError, match=said):
        for item in choices:
            merge.take(item)


def test_another_text_for_the_same_token_never_goes_through() -> None:
    merge = TokenMerge(Api.COMPLETIONS, ())
    assert merge.offer_first(first_token(1, "a"))
    with pytest.raises(TokenMismatch):
        merge.take(choice(0, [1], "b"))


@pytest.mark.parametrize(
    ("first", "stops", "leads"),
    [
        (first_token(), (), True),
        (first_token(text=" the"), ("\n", "END"), True),
        (first_token(token_id=None), (), False),
        (first_token(text=""), (), False),
        (first_token(text="x\ufffd"), (), False),
        (first_token(finish="stop"), (), False),
        (first_token(text="xE"), ("END",), False),
        (first_token(text="xENDy"), ("END",), False),
        (first_token(text="END"), ("END",), False),
    ],
)
def test_prefills_token_leads_only_where_decode_cannot_change_it(
    first: FirstToken, stops: tuple[str, ...], leads: bool
) -> None:
    assert first.may_lead(stops) is leads


def test_log_probabilities_go_with_their_tokens() -> None:
    merge = TokenMerge(Api.COMPLETIONS, ())
    merge.offer_first(first_token())
    [rest] = merge.take(choice(0, [1, 2], "ab") | {"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1, -2]}})
    assert (rest["text"], rest["token_ids"], rest["token_index"]) == ("b", [2], 1)
    assert rest["logprobs"] == {"tokens": ["b"], "token_logprobs": [-2]}
