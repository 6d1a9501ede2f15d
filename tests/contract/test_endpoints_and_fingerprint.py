from __future__ import annotations

import pytest

from kvferry_contract import endpoints, fingerprint

GROUP = endpoints.Group("decode", 0, "ab12", True, False, "127.9.0.3:8000", ("127.9.0.3:7400",), "m-decode-0")


def test_groups_read_back() -> None:
    assert endpoints.load(endpoints.dump([GROUP])) == (GROUP,)


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
