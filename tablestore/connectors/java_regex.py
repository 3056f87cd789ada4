"""Java regular expressions in options, such as topic patterns."""

from __future__ import annotations

import re
from typing import Any

from snapshot.errors import InvalidInputError

_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_NAMED_GROUP = re.compile(r"\\k<(\w+)>")
_JAVA_CLASS = re.compile(r"\\([pP])\{java(\w+)\}")
_JAVA_CLASSES = {"LowerCase": "Lower", "UpperCase": "Upper", "Alphabetic": "Alpha", "Digit": "Digit"}


def compile_pattern(pattern: str, option: str) -> Any:
    r"""Compile a Java regular expression; ``option`` is the name of its option, for error messages.

    The ``regex`` package supports the Java syntax that Python's ``re`` lacks: class intersections, possessive
    quantifiers, atomic groups and POSIX classes. This function rewrites ``\Q...\E``, ``\k<name>`` and
    ``\p{javaLowerCase}``, which ``regex`` does not support.

    Raises:
        InvalidInputError: the pattern is not a valid or supported regular expression.
    """
    import regex  # noqa: PLC0415 - few sources have a pattern

    rewritten = _QUOTED.sub(lambda found: regex.escape(found[1], literal_spaces=True), pattern)
    rewritten = _NAMED_GROUP.sub(r"(?P=\1)", rewritten)
    rewritten = _JAVA_CLASS.sub(lambda m: rf"\{m[1]}{{{_JAVA_CLASSES.get(m[2], m[2])}}}", rewritten)
    try:
        return regex.compile(rewritten, regex.V1)
    except regex.error as error:
        msg = f"Option '{option}': {pattern!r} is not a Java regular expression that can be used here: {error}."
        raise InvalidInputError(msg) from error
