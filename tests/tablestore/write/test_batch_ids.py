"""Names and numbers of writes that callers may repeat, and what applications record with their commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapshot.delta.log import DeltaLog
from snapshot.errors import InvalidInputError
from snapshot.records import OLDEST, CommitId
from snapshot.storage import Storage


@pytest.mark.parametrize(
    "batch",
    [
        "job-7", ("job",), ("job", 7, 8), (None, 7), ("", 7), ("job", None), ("job", "7"), ("job", True), ("job", 1.0),
        ("job", -1), ("job", 2**63), ("job", np.bool_(True)), ("\ud800", 7), (OLDEST, 7), 7,
    ],
    ids=repr,
)  # fmt: skip
def test_what_names_no_write_is_refused_and_the_error_says_what_does(batch: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"batch: expected a pair \(name, number\).*got .*Nothing was written"):
        CommitId.of(batch)


@pytest.mark.parametrize("number", [0, 7, 2**63 - 1, np.int32(7), np.uint64(7), np.int64(0)], ids=repr)
def test_any_whole_number_that_delta_can_hold_is_taken(number: Any) -> None:
    made = CommitId.of(("job", number))
    assert made == CommitId("job", int(number), durable=True)
    assert type(made.batch) is int


@pytest.mark.parametrize("version", ["o", True, 2**63, None], ids=repr)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_one_application_that_records_no_number_hides_no_other(
    tmp_path: Path, version: Any, checkpointed: bool
) -> None:
    configuration = {"delta.checkpointInterval": "2" if checkpointed else "100"}
    columns = pa.schema([("id", pa.int64())])
    ours = DeltaLog.create(Storage.at(tmp_path), columns, partition_by=(), configuration=configuration, info={})
    ours.commit(1, add=[], info={}, transactions=[("early", 1)])
    ours.commit(2, add=[], info={}, transactions=[("job", 5)])
    foreign = [{"commitInfo": {"timestamp": 1}}, {"txn": {"appId": "broken", "version": version}}]
    text = "\n".join(map(json.dumps, foreign)).encode()
    assert Storage.at(tmp_path).put_new(f"_delta_log/{3:020d}.json", text)
    for log in (ours, DeltaLog(Storage.at(tmp_path))):
        found = [log.transaction_version(name) for name in ("early", "job", "broken", "never")]
        assert found == [1, 5, None, None]
        assert log.files() == []
    ours.commit(4, add=[], info={}, transactions=[("job", 6)])
    assert [log.transaction_version("job") for log in (ours, DeltaLog(Storage.at(tmp_path)))] == [6, 6]
