from __future__ import annotations

import pytest

import helm_chart


@pytest.fixture(scope="session")
def chart() -> helm_chart.Chart:
    return helm_chart.Chart(helm_chart.helm())
