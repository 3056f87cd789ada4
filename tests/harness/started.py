"""What is started and stopped, as a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """Base class of test servers: a ``with`` block starts and stops them."""

    @abstractmethod
    def start(self) -> Self:
        """Start, and wait until it can be used."""

    @abstractmethod
    def stop(self) -> None:
        """Stop, and wait for the end."""

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
