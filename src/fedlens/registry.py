"""Parts and where to find them: typed, frozen building blocks with the names that recipes use."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core.core_schema import CoreSchema, SerializerFunctionWrapHandler

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """The clause of an error message that says which name was probably meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(known) or 'nothing'}"


class UnknownName(ValueError):
    """A name that no registry entry has; the message offers the nearest one."""


class BadSettings(ValueError):
    """A part's settings are wrong; carries whose settings and what is wrong, so that a recipe can name the path."""

    def __init__(self, part: type[BaseModel], error: ValidationError):
        super().__init__(str(error))
        self.part, self.error = part, error


class WrittenInt(int):
    """A whole number that knows how it was written, in case a text is wanted: `+1`."""

    text: str


class WrittenFloat(float):
    """A number that knows how it was written, in case a text is wanted: `1.10`."""

    text: str


def as_written(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Where a text is wanted, take a number as it was written; `rounds: true` is a mistake, though Python counts True as 1."""
    kinds = list(_kinds(cls.model_fields[str(info.field_name)].annotation))
    holds_settings = any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds)  # which look for themselves
    switch, text, number = (any(kind in group for kind in kinds) for group in ((bool, Any), (str, Path), (int, float)))

    def read(item: Any) -> Any:
        if isinstance(item, bool) and not switch:
            raise ValueError(f"expected no true or false here; got {item}")
        if isinstance(item, WrittenInt | WrittenFloat) and text and not number:
            return item.text
        if isinstance(item, str) and not is_unicode(item):
            raise ValueError("expected a text in Unicode")
        if isinstance(item, list | tuple) and not holds_settings:
            return [read(inner) for inner in item]
        if isinstance(item, Mapping) and not holds_settings:
            return {key: read(inner) for key, inner in item.items()}
        return item

    return read(value)


def _kinds(annotation: Any) -> Iterator[Any]:
    """The types that an annotation names, and those that they hold."""
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def is_unicode(text: str) -> bool:
    """Whether a text can be written down: bytes that are no UTF-8 come from a command line as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Block(BaseModel):
    """Settings, checked in full when they are given: a key that the block does not know is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )
    _as_written = field_validator("*", mode="before")(as_written)

    @model_validator(mode="before")
    @classmethod
    def _settings_of_the_default_part(cls, values: Any) -> Any:
        """`task: {top_k: [5]}` without a name changes the part that is there by default."""
        if not isinstance(values, Mapping):
            return values
        defaults = {key: cls.model_fields[key].default for key in values if key in cls.model_fields}
        return {
            key: {"name": defaults[key].name, **value}
            if isinstance(value, Mapping) and isinstance(defaults.get(key), Part)
            else value
            for key, value in values.items()
        }


class Part(Block):
    """A building block of an experiment: its fields are its settings, its methods what it does.

    A part is frozen and holds no state: what changes from round to round is passed in and returned.
    """

    name: ClassVar[str]  # under which the class is registered; of one that is not, where it is defined

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        cls.name = f"{cls.__module__}.{cls.__qualname__}"  # never the parent's: what it does may be something else

    @model_serializer(mode="wrap")
    def _with_name(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"name": self.name} | handler(self)


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
            if isinstance(part, type) and issubclass(part, Part):
                part.name = name
            self.entries[name] = Entry(name, part, paper)
            return part

        return add

    def get(self, name: str) -> T:
        if name not in self.entries and "." in name:
            raise UnknownName(
                f"{self.kind} '{name}' is not registered: decorate the class with the registry's register('a name') and import it, "
                "or give the object itself to train()"
            )
        if name not in self.entries:
            raise UnknownName(f"unknown {self.kind} '{name}': {nearest(name, self.entries)}")
        return self.entries[name].part

    def build(self, value: Any) -> Any:
        """Make a part from what stands in a recipe: `adam`, or `{name: adam, learning_rate: 0.1}`."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        settings = dict(value)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise ValueError(f"a {self.kind} needs a name: choose from: {', '.join(self.entries)}")
        if other := [key for key in settings if not isinstance(key, str)]:
            raise ValueError(f"a {self.kind}'s settings have names; {other[0]!r} is none")
        part: Any = self.get(name)
        try:
            return part(**settings)
        except ValidationError as error:
            raise BadSettings(part, error) from error

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.entries.values())


def chosen_from(registry: Registry[Any]) -> Any:
    """Annotation of a recipe field whose value is a part of this registry, written with its settings."""
    return _Chosen(registry)


class _Chosen:
    """Joins the two things that pydantic needs for such a field: how to read it and how to write it."""

    def __init__(self, registry: Registry[Any]):
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(Annotated[source, SerializeAsAny(), BeforeValidator(self.registry.build)])
