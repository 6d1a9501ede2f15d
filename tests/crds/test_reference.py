"""The reference page follows the CRD."""

from __future__ import annotations

import crd_reference


def test_the_reference_page_is_fresh() -> None:
    assert crd_reference.PAGE.read_text() == crd_reference.page(), "run: python tests/_support/crd_reference.py"


def test_every_field_is_on_the_page() -> None:
    import crd_schema

    page = crd_reference.page()
    for path, node in crd_schema.walk(crd_schema.schema()):
        if path.startswith((".spec", ".status")):
            for key in node.get("properties", {}):
                assert key in page, f"{path}.{key}"
