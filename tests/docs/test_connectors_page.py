"""docs/reference/connector_conformance.md says what the tests check, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.docs import connectors_page as generator
from tests.docs.connectors_page import PAGE, Held, all_ids, held, page


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.docs.connectors_page"


def test_every_id_is_known_and_each_test_says_what_holds() -> None:
    known = set(all_ids())
    assert len(known) == 188
    for each in held():
        assert set(each.ids) <= known, each.name
        assert each.says, f"{each.name} has no docstring"


def test_a_statement_without_a_test_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [each for each in held() if "B47" not in each.ids]
    some: Callable[[], list[Held]] = lambda: tests  # noqa: E731
    monkeypatch.setattr(generator, "held", some)
    with pytest.raises(LookupError, match="no test holds B47"):
        page()
