"""docs/connectors.md says what the tests hold, and nothing else."""

from __future__ import annotations

from tests.connectors.page import ELSEWHERE, MARK, NOT_YET, PAGE, all_ids, held, page


def test_the_page_is_what_the_tests_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MARK in text
    assert text == page(), "run: python -m tests.connectors.page"


def test_every_id_is_known_and_each_test_says_what_holds() -> None:
    known = set(all_ids())
    for each in held():
        assert set(each.ids) <= known, each.name
        assert each.says, f"{each.name} has no docstring"


def test_nothing_is_held_and_called_missing() -> None:
    tested = {name for each in held() for name in each.ids}
    assert not tested & set(NOT_YET)
    assert not set(ELSEWHERE) & set(NOT_YET)
