"""Which methods an engine type can take."""

from kvferry_contract.config import Method
from kvferry_contract.engines import METHODS, SPARSE
from kvferry_operator.api.types import EngineType


def test_every_engine_type_has_its_methods_and_can_take_the_exact_one() -> None:
    assert set(METHODS) == {kind.value for kind in EngineType}
    assert all(Method.NONE in methods for methods in METHODS.values())


def test_only_the_engine_that_can_evict_takes_sparse_methods() -> None:
    assert {engine for engine, methods in METHODS.items() if methods & SPARSE} == {"reference"}
