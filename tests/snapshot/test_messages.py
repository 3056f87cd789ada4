"""Counted nouns in messages."""

from snapshot.messages import counted


def test_a_noun_has_the_number_of_its_count() -> None:
    found = [counted(count, "data file") for count in (0, 1, 2_000)]
    assert found == ["0 data files", "1 data file", "2,000 data files"]
