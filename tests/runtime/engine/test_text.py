from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_runtime.engine.reference.text import PromptError, StopStrings, TextStream, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return Tokenizer.load(tiny)


def pieces_of(tokenizer: Tokenizer, text: str, stops: list[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(tokenizer, [65, 66], stops)
    pieces = []
    for token in text.encode():
        pieces.append(stream.push(token))
        if stream.stopped:
            return pieces, stream
    pieces.append(stream.finish())
    return pieces, stream


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_text_comes_out_whole_and_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    pieces, _ = pieces_of(tokenizer, text, [])
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(
    text=st.text(alphabet="ab🚢é", max_size=30),
    stops=st.lists(st.text(alphabet="ab🚢é", min_size=1, max_size=4), max_size=3),
)
def test_nothing_of_a_stop_string_is_shown_wherever_tokens_end(
    tokenizer: Tokenizer, text: str, stops: list[str]
) -> None:
    pieces, stream = pieces_of(tokenizer, text, stops)
    ends = [text.find(stop) for stop in stops if stop in text]
    # of several stop strings, the one that is complete first counts
    complete = [text.find(stop) + len(stop) for stop in stops if stop in text]
    assert stream.stopped == bool(ends)
    shown = "".join(pieces)
    if not ends:
        assert shown == text
    else:
        first = text[: min(complete)]
        assert shown == first[: min(first.find(stop) for stop in stops if stop in first)]


def test_stops_are_found_across_pieces() -> None:
    stops = StopStrings(["END", "\n\n"])
    assert [stops.push(piece) for piece in ("one E", "N", "E", "\n", "x E", "ND more")] == [
        "one ",
        "",
        "ENE"[:2] + "",
        "E",
        "\nx ",
        "",
    ]
    assert stops.found
    assert (stops.push("after"), stops.finish()) == ("", "")


def test_what_was_held_back_comes_at_the_end() -> None:
    stops = StopStrings(["stop"])
    assert stops.push("do not sto") == "do not "
    assert stops.finish() == "sto"
    assert not stops.found


def test_half_a_character_at_the_end_is_shown_as_such(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, [], [])
    assert [stream.push(token) for token in "é".encode()[:1]] == [""]
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, [65], [])
    assert [stream.push(token) for token in (66, 256, 67)] == ["B", "", "C"]


def test_chat_follows_the_template(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode_chat([{"role": "user", "content": "hé"}])
    assert tokens == [256, *b"user:h\xc3\xa9", 257, 256, *b"assistant:"]


def test_what_the_template_refuses_is_told(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="unknown role"):
        tokenizer.encode_chat([{"role": "pirate", "content": "arr"}])
