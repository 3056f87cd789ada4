"""``DESCRIBE`` shows what Flink shows, also of columns that are computed."""

from __future__ import annotations

import pytest

from tablestore.sql import Catalog


@pytest.mark.parametrize("connector", ["", "WITH ('connector' = 'kafka', 'topic' = 't', 'format' = 'json', 'properties.bootstrap.servers' = 'h:1')"])  # fmt: skip  # noqa: E501
def test_the_types_of_computed_columns_are_described(catalog: Catalog, connector: str) -> None:
    catalog.sql(f"""
        CREATE TABLE t (
            k INT NOT NULL, s STRING, d DECIMAL(10, 2), at AS TO_TIMESTAMP(s) COMMENT 'when', half AS k / 2,
            u AS UPPER(s), `money spent` AS d * 2, one AS 1, r AS ROW(k, s), m AS MAP['k', k],
            ago AS INTERVAL '3' DAY, p AS PROCTIME(), WATERMARK FOR at AS at - INTERVAL '5' SECOND
        ) {connector}
    """)
    described = catalog.sql("DESCRIBE t")
    assert described.columns == ("name", "type", "null", "key", "extras", "watermark", "comment")
    assert described.rows[3] == (
        "at", "TIMESTAMP(6) *ROWTIME*", "TRUE", "", "AS TO_TIMESTAMP(s)", "at - INTERVAL '5' SECOND", "when",
    )  # fmt: skip
    assert [row[:3] for row in described.rows if row[0] != "at"] == [
        ("k", "INT", "FALSE"),
        ("s", "STRING", "TRUE"),
        ("d", "DECIMAL(10, 2)", "TRUE"),
        ("half", "INT", "TRUE"),
        ("u", "STRING", "TRUE"),
        ("money spent", "DECIMAL(12, 2)", "TRUE"),
        ("one", "INT", "FALSE"),
        ("r", "ROW<`EXPR$0` INT NOT NULL, `EXPR$1` STRING>", "FALSE"),
        ("m", "MAP<STRING NOT NULL, INT NOT NULL>", "FALSE"),
        ("ago", "INTERVAL DAY", "FALSE"),
        ("p", "TIMESTAMP_LTZ(3) *PROCTIME*", "FALSE"),
    ]
