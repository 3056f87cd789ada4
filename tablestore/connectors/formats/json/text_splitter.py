"""Splits many JSON texts at once into the texts of their fields or elements, byte for byte.

DuckDB's ``json_extract`` rewrites what it extracts: ``1.10`` becomes ``1.1``, and a decimal of many digits a double.
Here the parts are cut out of the texts at the positions of their brackets, commas and colons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablestore.connectors.formats.column_texts import bounds_and_bytes

SPACE = " \t\r\n"
"""JSON's whitespace characters."""

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_DEPTHS = np.zeros(256, np.int8)
_DEPTHS[list(b"{[")] = 1
_DEPTHS[list(b"}]")] = -1
_MARKS = np.zeros(256, bool)
_MARKS[list(b'{}[]:,"')] = True
_SPACES = np.zeros(256, bool)
_SPACES[list(SPACE.encode())] = True


@dataclass(frozen=True)
class Fields:
    """The fields of JSON objects.

    Attributes:
        texts: the text of each wanted field's value, large_string, by name; NULL for an object that lacks it. If a
            field occurs several times, the last one counts.
        doubtful: a mask of objects whose texts are not certain, because the name of a field has an escape.
    """

    texts: dict[str, pa.Array]
    doubtful: np.ndarray


@dataclass(frozen=True)
class Elements:
    """The elements of JSON arrays.

    Attributes:
        texts: the text of each element, large_string.
        record: the position of each element's array, ascending.
    """

    texts: pa.Array
    record: np.ndarray


def split_objects(texts: pa.Array, names: Sequence[str]) -> Fields:
    """Return fields of valid JSON objects (large_string, without NULL); whitespace may only follow them."""
    marks = _Marks.of(texts)
    colons = np.flatnonzero((marks.kinds == _COLON) & (marks.depths == 1))
    starts, ends = marks.places[colons] + 1, marks.part_ends(marks.places[colons])
    record = marks.record(marks.places[colons])
    # Before a colon, there are only the two quotes of the field's name.
    first, last = marks.places[colons - 2] + 1, marks.places[colons - 1]
    doubtful = np.zeros(len(texts), bool)
    doubtful[record[_holds_backslash(marks.data, first, last)]] = True
    found = {}
    for name in dict.fromkeys(names):
        here = _named(marks.data, first, last, name.encode())
        rows = record[here]
        begin, end = np.zeros((2, len(texts)), np.int64)
        begin[rows], end[rows] = starts[here], ends[here]
        missing = np.ones(len(texts), bool)
        missing[rows] = False
        found[name] = _cut(marks.data, begin, end, missing)
    return Fields(found, doubtful)


def split_arrays(texts: pa.Array) -> Elements:
    """Return the elements of valid JSON arrays, large_string, without NULL; see ``split_objects``."""
    marks = _Marks.of(texts)
    opened = (marks.depths == 1) & (_DEPTHS[marks.kinds] == 1)
    before = marks.places[opened | ((marks.depths == 1) & (marks.kinds == _COMMA))]
    record = marks.record(before)
    found = _cut(marks.data, before + 1, marks.part_ends(before), None)
    # Between the brackets of an empty array there is no element.
    there = pc.greater(pc.binary_length(found), 0)
    return Elements(found.filter(there), record[there.to_numpy(zero_copy_only=False)])


def join_objects(names: Sequence[str], texts: Sequence[pa.Array]) -> pa.Array:
    """Return JSON objects of at least one field, whose values are JSON texts; NULL becomes ``null``."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, (name, values) in enumerate(zip(names, texts, strict=True)):
        start = ("," if number else "{") + json.dumps(name, ensure_ascii=False) + ":"
        parts += [pa.scalar(start, pa.large_string()), pc.fill_null(values, "null")]
    end, separator = pa.scalar("}", pa.large_string()), pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(*parts, end, separator)


@dataclass(frozen=True)
class _Marks:
    """The brackets, commas, colons and quotes of JSON texts that are not inside of strings.

    Attributes:
        data: the bytes of all texts.
        ends: where each text ends in ``data``.
        places: where the marks are in ``data``, ascending.
        kinds: their characters.
        depths: how many brackets are open after each mark.
    """

    data: np.ndarray
    ends: np.ndarray
    places: np.ndarray
    kinds: np.ndarray
    depths: np.ndarray

    @classmethod
    def of(cls, texts: pa.Array) -> _Marks:
        bounds, data = bounds_and_bytes(texts)
        data = data[bounds[0] : bounds[-1]]
        places = np.flatnonzero(_MARKS[data])
        places = places[~_is_escaped_quote(data, places)]
        kinds = data[places]
        quotes = kinds == _QUOTE
        outside = np.cumsum(quotes) % 2 == 0
        places, kinds = places[quotes | outside], kinds[quotes | outside]
        return cls(data, bounds[1:] - bounds[0], places, kinds, np.cumsum(_DEPTHS[kinds], dtype=np.int32))

    def part_ends(self, places: np.ndarray) -> np.ndarray:
        """Return where the parts end that begin at these places: at the next comma or closing bracket of the text."""
        commas = (self.kinds == _COMMA) & (self.depths == 1)
        closing = (self.depths == 0) & (_DEPTHS[self.kinds] < 0)
        stops = self.places[commas | closing]
        found: np.ndarray = stops[np.searchsorted(stops, places, side="right")]
        return found

    def record(self, places: np.ndarray) -> np.ndarray:
        """Return the positions of the texts that these places are in."""
        return np.searchsorted(self.ends, places, side="right")


def _is_escaped_quote(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return a mask of quotes that follow an odd number of backslashes."""
    count = np.zeros(len(places), np.int64)
    if not (data == _BACKSLASH).any():
        return np.zeros(len(places), bool)
    left = np.flatnonzero((data[places] == _QUOTE) & (places > 0))
    while len(left):
        before = places[left] - 1 - count[left]
        left = left[(before >= 0) & (data[before] == _BACKSLASH)]
        count[left] += 1
    is_escaped: np.ndarray = count % 2 == 1
    return is_escaped


def _holds_backslash(data: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    backslashes = np.flatnonzero(data == _BACKSLASH)
    return np.searchsorted(backslashes, first) < np.searchsorted(backslashes, last)


def _named(data: np.ndarray, first: np.ndarray, last: np.ndarray, name: bytes) -> np.ndarray:
    """Return the positions of the field names, between ``first`` and ``last`` in ``data``, that equal a name."""
    here = np.flatnonzero(last - first == len(name))
    for offset, letter in enumerate(name):
        here = here[data[first[here] + offset] == letter]
    return here


def _cut(data: np.ndarray, begin: np.ndarray, end: np.ndarray, missing: np.ndarray | None) -> pa.Array:
    """Return the texts between two places in ``data`` each, without whitespace around them; NULL where missing."""
    begin, end = begin.copy(), end.copy()
    left = np.flatnonzero(begin < end)
    while len(left := left[_SPACES[data[begin[left]]]]):
        begin[left] += 1
        left = left[begin[left] < end[left]]
    left = np.flatnonzero(begin < end)
    while len(left := left[_SPACES[data[end[left] - 1]]]):
        end[left] -= 1
    lengths = end - begin
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    taken = data[np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], lengths)]
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(taken)]
    return pa.Array.from_buffers(pa.large_string(), len(lengths), buffers)
