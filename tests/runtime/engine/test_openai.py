from typing import Any

import pytest

from kvferry_runtime.engine.reference.openai import CHAT_TOKENS, COMPLETION_TOKENS, Api, BadRequest, parse

GOOD_TRANSFER = {"transfer_id": "a" * 32, "role": "prefill", "peers": [], "deadline_ms": 1000}


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hello", **fields}


def test_defaults() -> None:
    asked = parse(Api.COMPLETIONS, completion(), "m")
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k) == (None, 1.0, 1.0, 0)
    assert asked.default_tokens == COMPLETION_TOKENS
    assert (asked.seed, asked.stops, asked.stream, asked.transfer) == (None, (), False, None)
    chat = parse(Api.CHAT, {"messages": [{"role": "user", "content": "x"}]}, "m")
    assert (chat.default_tokens, chat.prompt) == (CHAT_TOKENS, [{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"prompt": [1, 2]}, "prompt", [1, 2]),
        ({"prompt": ["one"]}, "prompt", "one"),
        ({"prompt": [[3, 4]]}, "prompt", [3, 4]),
        ({"stop": "x"}, "stops", ("x",)),
        ({"stop": None, "n": 1, "logprobs": None, "echo": False}, "stops", ()),
        ({"top_k": -1}, "top_k", 0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"stream_options": {"include_usage": True}}, "include_usage", True),
        ({"stop_token_ids": [7]}, "stop_token_ids", frozenset({7})),
        ({"metadata": {"anything": 1}, "user": "me"}, "max_tokens", None),
    ],
)
def test_fields(fields: dict[str, Any], name: str, value: object) -> None:
    assert getattr(parse(Api.COMPLETIONS, completion(**fields), "m"), name) == value


def test_chat_takes_text_parts_and_both_limits() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "max_completion_tokens": 4}
    asked = parse(Api.CHAT, body, "m")
    assert asked.prompt == [{"role": "user", "content": "ab"}]
    assert asked.max_tokens == 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "not an object"),
        ({}, "prompt is missing"),
        ({"prompt": ""}, "prompt is missing"),
        ({"prompt": []}, "prompt is missing"),
        ({"prompt": [1, -2]}, "list of token ids"),
        ({"prompt": [True]}, "list of token ids"),
        ({"prompt": ["a", "b"]}, "2 prompts"),
        (completion(max_tokens=0), "max_tokens 0"),
        (completion(max_tokens=True), "max_tokens True"),
        (completion(max_tokens="5"), "max_tokens '5'"),
        (completion(temperature=-1), "temperature -1"),
        (completion(temperature=float("nan")), "temperature nan"),
        (completion(top_p=1.5), "top_p 1.5"),
        (completion(seed=1 << 63), "seed"),
        (completion(stream="yes"), "stream 'yes'"),
        (completion(stop=["a"] * 17), "stop is not"),
        (completion(stop=[""]), "stop is not"),
        (completion(stop=[1]), "stop is not"),
        (completion(stop_token_ids=["x"]), "stop_token_ids"),
        (completion(n=2), "n 2"),
        (completion(logprobs=1), "logprobs 1"),
        (completion(echo=True), "echo"),
        (completion(presence_penalty=0.5), "presence_penalty"),
        (completion(stream_options=3), "stream_options"),
        (completion(kv_transfer_params={**GOOD_TRANSFER, "transfer_id": "x"}), "transfer_id"),
        (completion(kv_transfer_params={**GOOD_TRANSFER, "role": "decode"}), "peers"),
        (completion(kv_transfer_params=[]), "expected an object"),
    ],
)
def test_what_is_wrong_is_named(body: object, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as raised:
        parse(Api.COMPLETIONS, body, "m")
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages is missing"),
        ([], "messages is missing"),
        (["x"], r"messages\[0\]"),
        ([{"role": "user"}], r"messages\[0\].content"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], r"messages\[1\]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "reads text only"),
    ],
)
def test_messages_that_are_none(messages: object, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse(Api.CHAT, {"messages": messages}, "m")


def test_another_model_is_not_found() -> None:
    with pytest.raises(BadRequest, match="'other' is not served") as raised:
        parse(Api.COMPLETIONS, completion(model="other"), "m")
    assert (raised.value.status, raised.value.code) == (404, "model_not_found")
