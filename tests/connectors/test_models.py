"""The connectors against plain Python: any sequence of changes, any gaps of transactions, more than one batch."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connectors.harness.lab import Lab
from tests.connectors.harness.wire import Wire
from tests.harness.waiting import PATIENCE_SECONDS

Topics = Callable[..., str]
KV = "k INT, v STRING"
CHANGES = f"{KV}, _change_type STRING"
WORDS = ("insert", "update_postimage", "update_preimage", "delete")
STEPS = st.lists(st.tuples(st.integers(0, 4), st.text(max_size=5), st.sampled_from(WORDS)), max_size=30)


@settings(max_examples=15)
@given(steps=STEPS, cut=st.integers(0, 30), include=st.sampled_from(["ALL", "EXCEPT_KEY"]))
def test_an_upsert_table_is_a_dict(
    wire: Wire, topic: Callable[[], str], steps: list[tuple[int, str, str]], cut: int, include: str
) -> None:
    lab, name = Lab(wire), wire.make(topic(), 3, cleanup_policy="compact")
    options = {"primary_key": "k", "value__fields_include": include}
    stream = lab.stream(name, CHANGES, "upsert-kafka", **options)
    table: dict[int, str] = {}
    followed: dict[int, str] = {}
    for part in (steps[:cut], steps[cut:]):
        lab.write(name, CHANGES, part, "upsert-kafka", **options)
        for k, v, word in part:
            if word == "delete":
                table.pop(k, None)
            elif word != "update_preimage":
                table[k] = v
        assert {row["k"]: row["v"] for row in lab.upsert(name, KV, "k", **options)} == table
        for row in stream.run():
            if row["_change_type"] == "delete":
                followed.pop(row["k"], None)
            else:
                followed[row["k"]] = row["v"]
        assert followed == table


def test_gaps_of_transactions_hide_and_hold_up_nothing(lab: Lab, made: Topics) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    topic = made()
    producer = Producer({"bootstrap.servers": lab.wire.servers, "transactional.id": f"gaps-{topic}"})
    producer.init_transactions(20)
    stream = lab.stream(topic, "n INT", maxRowsPerTrigger=3)
    expected: list[int] = []
    dice = random.Random(1)
    for number in range(30):
        producer.begin_transaction()
        producer.produce(topic, b'{"n":%d}' % number)
        producer.flush(PATIENCE_SECONDS)
        if dice.random() < 0.4:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
            expected.append(number)
        if number % 10 == 4:
            stream.run()
    lab.write(topic, "n INT", [(1000,)])
    stream.run()
    expected.append(1000)
    assert [row["n"] for batch in stream.batches for row in batch] == expected
    assert [row["n"] for row in lab.read(topic, "n INT")] == expected


@pytest.mark.slow
def test_many_rows_pass_in_bounded_batches(lab: Lab, made: Topics) -> None:
    topic = made(2, cleanup_policy="compact")
    rows = [(n, f"value {n}") for n in range(60_000)]
    lab.write_tasks(topic, KV, [rows[:35_000], rows[35_000:]], "upsert-kafka", primary_key="k")
    assert len(lab.read(topic, KV, key__fields="k")) == 60_000
    lab.write(topic, CHANGES, [(n, None, "delete") for n in range(0, 60_000, 2)], "upsert-kafka", primary_key="k")
    found = lab.read(topic, KV, "upsert-kafka", primary_key="k")
    assert sorted((row["k"], row["v"]) for row in found) == rows[1::2]
