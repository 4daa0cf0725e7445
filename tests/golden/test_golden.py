"""A change that should not alter results shows the same seeded numbers as before."""

import json
from typing import Any

import pytest

import archlearn as al
from tests.golden.recording import FILE, record

# double precision leaves room for another order of summation, and for nothing else
CLOSE = {"rel": 1e-6, "abs": 1e-8}


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    """The numbers of the runs that were recorded."""
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("price", list(al.Price), ids=lambda price: price.value)
def test_a_seeded_run_gives_the_numbers_it_gave(known: dict[str, Any], price: al.Price) -> None:
    expected, found = known[price.value], record(price)
    for name in ("losses", "penalties", "output", "depths"):
        assert found[name] == pytest.approx(expected[name], **CLOSE), name
    for name, gates in expected["widths"].items():
        assert found["widths"][name] == pytest.approx(gates, **CLOSE), name
    assert found["architecture"] == expected["architecture"]
    assert found["parameters"] == expected["parameters"]


def test_the_recorded_runs_learnt_something_and_differ(known: dict[str, Any]) -> None:
    for run in known.values():
        assert run["losses"][-1] < 0.5 * run["losses"][0]
        assert run["parameters"] < 64 * 40
    assert len({run["architecture"] for run in known.values()}) > 1
