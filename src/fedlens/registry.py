"""Find a part by the name it has in a recipe: one small registry for each kind of part."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause of an error message that says which name was probably meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(known)}"


class UnknownName(ValueError):
    """A name that no registry entry has; the message offers the nearest one."""


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered part with what the catalogue says about it."""

    name: str
    part: T
    paper: str | None = None

    @property
    def summary(self) -> str:
        """The first line of the part's docstring."""
        return (self.part.__doc__ or "").strip().split("\n")[0]


class Registry(Generic[T]):
    """Names of one kind of part, for example 'server rule', in the order in which they were registered."""

    def __init__(self, kind: str):
        self.kind = kind
        self.entries: dict[str, Entry[T]] = {}

    def register(self, name: str, paper: str | None = None) -> Callable[[T], T]:
        """Decorate a class or function with the name under which recipes and the command line find it."""

        def add(part: T) -> T:
            if name in self.entries:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self.entries[name] = Entry(name, part, paper)
            return part

        return add

    def get(self, name: str) -> T:
        if name not in self.entries:
            raise UnknownName(f"unknown {self.kind} '{name}': {nearest(name, self.entries)}")
        return self.entries[name].part

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.entries.values())
