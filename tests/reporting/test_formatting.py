"""Numbers are written for reading."""

import pytest

from archlearn.reporting.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_ratio,
    format_short_count,
)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (64, "64"),
        (0.0003, "0.0003"),
        (0.99321, "0.9932"),
        (2874.3, "2,874"),
        (12345.6, "12,346"),
        (1e-10, "1 × 10⁻¹⁰"),
        (9.54e-07, "9.54 × 10⁻⁷"),
        (-3.3e-15, "-3.3 × 10⁻¹⁵"),
        (6.02e23, "6.02 × 10²³"),
        (9.9996e-6, "1 × 10⁻⁵"),
    ],
)
def test_any_number_keeps_the_digits_that_matter(value: float | None, text: str) -> None:
    assert plain(format_number(value)) == text


def test_counts_shares_and_sizes_carry_their_unit() -> None:
    assert format_count(431080) == "431,080"
    assert plain(format_percent(0.9932)) == "99.32 %"
    assert plain(format_bytes(76460)) == "76.5 kB"
    assert plain(format_bytes(340)) == "340 bytes"
    assert [format_short_count(n) for n in (9.0, 19115, 3.664e9)] == ["9", "19.1k", "3.66G"]


def test_rounding_up_moves_to_the_next_unit() -> None:
    assert format_short_count(999_999) == "1M"
    assert plain(format_bytes(999_999)) == "1 MB"


def test_ratio_says_how_many_times_smaller() -> None:
    assert format_ratio(431080, 19115) == "22.6×"
    assert format_ratio(431080, 431080) == "1×"
    assert format_ratio(431080, 100) == "4,311×"
    assert format_ratio(None, 5) == format_ratio(5, 0) == "–"


def test_durations_have_at_most_two_units() -> None:
    assert plain(format_duration(12.34)) == "12.3 s"
    assert plain(format_duration(181.2)) == "3 min 1 s"
    assert plain(format_duration(7260)) == "2 h 1 min"


def test_a_duration_is_never_rounded_to_sixty_seconds() -> None:
    assert plain(format_duration(119.7)) == "2 min 0 s"
    assert plain(format_duration(59.97)) == "1 min 0 s"
