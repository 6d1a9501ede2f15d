"""Which compression methods each engine type can take.

The operator refuses an object that asks an engine for another one, and the agent offers its peers no other one.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvferry_contract.config import Method

SPARSE = frozenset({Method.SPARSE50, Method.SPARSE75})
"""They leave tokens out for good, so decode must hold a prompt with gaps: its cache is shorter than the next position.
Engines that find a token's KV by its position cannot do that, and to fill the gaps with zeros gives wrong answers."""

METHODS: Mapping[str, frozenset[Method]] = {
    "reference": frozenset(Method),
    "vllm": frozenset(Method) - SPARSE,
    "custom": frozenset(Method) - SPARSE,
}
"""By `spec.engine.type`. Of a custom engine nothing is known but that it loads our connector."""
