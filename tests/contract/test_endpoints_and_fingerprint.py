from __future__ import annotations

import dataclasses

import pytest

from kvferry_contract import endpoints, fingerprint

GROUP = endpoints.Group("decode", 0, "ab12", True, False, "127.9.0.3:8000", ("127.9.0.3:7400",), "m-decode-0")


@pytest.mark.parametrize("group", [GROUP, dataclasses.replace(GROUP, sidecar_http=("127.9.0.3:7401",))])
def test_groups_read_back(group: endpoints.Group) -> None:
    assert endpoints.load(endpoints.dump([group])) == (group,)


def test_a_file_that_names_no_sidecar_http_is_read() -> None:
    text = endpoints.dump([GROUP]).replace(', "sidecar_http": []', "")
    assert "sidecar_http" not in text and endpoints.load(text) == (GROUP,)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2, "groups": []}', '{"version": 1, "groups": [{"role": "x"}]}']
)
def test_a_broken_file_is_an_error_not_an_empty_list(text: str) -> None:
    with pytest.raises(endpoints.EndpointsError):
        endpoints.load(text)


def test_a_difference_names_field_and_both_values() -> None:
    found = fingerprint.compare({"model": "a", "kv.dtype": "bf16"}, {"model": "a", "kv.dtype": "fp8", "x": "1"})
    assert [str(item) for item in found] == [
        "kv.dtype: 'bf16' here, 'fp8' at the peer",
        "x: '' here, '1' at the peer",
    ]
    assert fingerprint.compare({"a": "1"}, {"a": "1"}) == ()


def test_a_digest_is_equal_where_there_is_no_difference() -> None:
    ours = {"model": "a", "kv.dtype": "bf16"}
    assert fingerprint.digest(ours) == fingerprint.digest({"kv.dtype": "bf16", "model": "a", "x": ""})
    assert fingerprint.digest(ours) != fingerprint.digest(ours | {"x": "1"})
    assert fingerprint.digest({}) == ""
