"""YAML in which a key stands once in its mapping, as YAML itself demands: of two, one would go unheard."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
"""Of the key `<<`, which merges another mapping in and may do so several times."""


class Loader(yaml.SafeLoader):
    """Safe, and refuses a key that stands twice.

    Raises:
        yaml.MarkedYAMLError: not YAML, or a key twice in one mapping; the problem's mark is at the second.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # here and not where values are built: by then the keys that `<<` merges in stand among those that may hide them
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            known = (key.tag, key.value)
            if known in first:
                problem = f"key {key.value} appears twice, first in line {first[known]}"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            first[known] = key.start_mark.line + 1
        return node
