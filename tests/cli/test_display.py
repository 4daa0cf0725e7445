"""What is said of a run fits into lines."""

from archlearn.cli.display import in_a_line


def test_architecture_that_is_no_chain_is_said_in_one_line() -> None:
    assert in_a_line("20-50-500-10") == "20-50-500-10"
    assert (
        in_a_line("stem  1 of 16\na     13 of 16\nhead  10") == "stem 1 of 16, a 13 of 16, head 10"
    )
    assert in_a_line("\n".join(f"layer{n}  64" for n in range(50))) == "50 layers"
