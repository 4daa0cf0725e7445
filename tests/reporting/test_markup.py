"""Only what this package wrote is markup."""

import pytest

from archlearn.reporting.markup import Html, fill, join, write_pairs, write_table

HOSTILE = '<script>alert("1")</script>&\''
ESCAPED = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#x27;"


def test_values_are_escaped_and_markup_is_not() -> None:
    filled = fill('<p title="$a">$a $b</p>', a=HOSTILE, b=Html("<b>kept</b>"))
    assert filled.text == f'<p title="{ESCAPED}">{ESCAPED} <b>kept</b></p>'


def test_a_dollar_in_a_value_is_no_placeholder() -> None:
    assert fill("$a", a="$b ${c}").text == "$b ${c}"


def test_a_forgotten_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="b"):
        fill("$a $b", a=1)


def test_tables_and_lists_escape_what_they_hold() -> None:
    table = write_table(HOSTILE, [HOSTILE], [[HOSTILE, HOSTILE]]).text
    pairs = write_pairs([(HOSTILE, HOSTILE)]).text
    assert "<script" not in table + pairs
    assert table.count(ESCAPED) == 5
    assert pairs.count(ESCAPED) == 2


def test_first_column_names_its_row() -> None:
    table = write_table("Costs", ["Cost", "Before"], [["Parameters", 3]]).text
    assert '<th scope="col">Before</th>' in table
    assert '<tr><th scope="row">Parameters</th><td>3</td></tr>' in table


def test_parts_are_joined_in_order() -> None:
    assert join([Html("a"), Html("b")], "-").text == "a-b"
