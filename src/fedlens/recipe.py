"""An experiment as data: every setting typed and checked; YAML in, YAML out, overrides by dotted keys."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator
from torch import nn

from fedlens.algorithms.aggregators import AGGREGATORS, Aggregator, WeightedMean
from fedlens.algorithms.local_rules import LOCAL_RULES, SGD, LocalRule
from fedlens.algorithms.local_work import LOCAL_WORK, Epochs, LocalWork
from fedlens.algorithms.samplers import SAMPLERS, All, Sampler, Uniform
from fedlens.algorithms.server_rules import SERVER_RULES, ServerRule, ServerSGD
from fedlens.data import IID, PARTITIONS, SOURCES, Partition, Source
from fedlens.data.partitions import Aside, Shift
from fedlens.engines import EngineName, Precision
from fedlens.models import MODELS, create_model
from fedlens.recipe_text import Dumper, RecipeError, depth_of, override_, parse
from fedlens.registry import BadSettings, Block, chosen_from, nearest
from fedlens.tasks import TASKS, Classification, Task
from fedlens.tracking.trackers import TRACKERS, Tracker

PACKAGED = Path(__file__).parent / "recipes"
Positive = Annotated[int, Field(ge=1)]


class Data(Block):
    """Which examples there are, who holds them, the shares that are kept aside for validation and test (of every client's
    examples, or of the clients), and whether clients' images look different.
    """

    source: Annotated[Source, chosen_from(SOURCES)]
    partition: Annotated[Partition, chosen_from(PARTITIONS)] = IID()
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test: Annotated[float, Field(ge=0, lt=1)] = 0.0
    aside: Aside = "examples"
    shift: Shift | None = None

    @model_validator(mode="after")
    def _something_is_left(self) -> Data:
        if self.validation + self.test >= 1:
            raise ValueError("validation and test together leave nothing to train on")
        return self


def _known_model(name: str) -> str:
    MODELS.get(name)
    return name


class Model(Block):
    """A registered model and the surgery on it: the arguments of `create_model`; classes and channels come from the data."""

    name: Annotated[str, AfterValidator(_known_model)]
    norm: Literal["batch", "group", "frozen"] | None = None
    groups: Positive | None = None
    norm_init: Literal["fresh", "affine"] = "fresh"
    bottleneck: Positive | None = None
    pretrained: str | None = None
    freeze: str | tuple[str, ...] | None = None

    def build(self, classes: int, channels: int, image_size: int, seed: int) -> nn.Module:
        settings = self.model_dump()
        return create_model(settings.pop("name"), classes, channels=channels, image_size=image_size, seed=seed, **settings)


class Evaluation(Block):
    """When the model is measured: every so many rounds and after the last; `batch_size` only sets the speed (chosen by itself)."""

    every: Positive = 1
    batch_size: Positive | None = None


def _known_device(device: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return device


def _folder_name(name: str) -> str:
    if name in ("", ".", "..") or any(letter in name for letter in "/\\\0"):
        raise ValueError("expected a text that can name a folder: no slash, and not empty")
    return name


class Recipe(Block):
    """An experiment: who trains, on what, how, and for how long.

    `setting` is 'federated'; 'centralised' trains the same model on all examples in one hand, a round being the local work
    on the pool; 'local' trains `cohort_size` clients, drawn once, each alone for all rounds, and averages nothing.
    """

    name: Annotated[str, AfterValidator(_folder_name)] = "run"
    description: str = ""
    setting: Literal["federated", "centralised", "local"] = "federated"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Positive
    cohort_size: Positive
    device: Annotated[str, AfterValidator(_known_device)] = "auto"
    engine: EngineName = "auto"
    precision: Precision = "float32"
    data: Data | None = None
    model: Annotated[Model, BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)] | None = None
    task: Annotated[Task, chosen_from(TASKS)] = Classification()
    sampler: Annotated[Sampler, chosen_from(SAMPLERS)] = Uniform()
    local_work: Annotated[LocalWork, chosen_from(LOCAL_WORK)] = Epochs()
    local_rule: Annotated[LocalRule, chosen_from(LOCAL_RULES)] = SGD()
    aggregator: Annotated[Aggregator, chosen_from(AGGREGATORS)] = WeightedMean()
    server_rule: Annotated[ServerRule, chosen_from(SERVER_RULES)] = ServerSGD()
    evaluation: Evaluation = Evaluation()
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    trackers: tuple[Annotated[Tracker, chosen_from(TRACKERS)], ...] = ()

    @model_validator(mode="after")
    def _cohort_fits(self) -> Recipe:
        clients = getattr(self.data and self.data.partition, "clients", None)
        if clients is not None and self.setting != "centralised":
            self.sampler.check(np.broadcast_to(np.int64(1), clients), self.cohort_size)  # takes no memory
        return self

    def resolved(self) -> Recipe:
        """Say in full what `setting` implies: nothing is averaged, and momentum outlives a round."""
        if self.setting == "federated":
            return self
        implied: dict[str, Any] = {"server_rule": ServerSGD(), "aggregator": WeightedMean()}
        if self.setting == "centralised":
            implied |= {"sampler": All(), "cohort_size": 1}
        if self.local_rule.momentum:
            implied["local_rule"] = self.local_rule.model_copy(update={"keep_momentum": True})
        return self.model_copy(update=implied)

    def unused(self) -> list[str]:
        """Settings that are there but have no meaning in this `setting`."""
        resolved = self.resolved()
        changed = [key for key in ("sampler", "aggregator", "server_rule") if getattr(self, key) != getattr(resolved, key)]
        return [key for key in changed if key in self.model_fields_set]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of the fields; what is not set is left out, and infinity is a text."""
        plain: dict[str, Any] = _finite(self.model_dump(mode="json", exclude_none=True))
        return plain

    def to_yaml(self) -> str:
        plain = self.model_dump(mode="json", exclude_none=True)
        return yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "recipe") -> Recipe:
        try:
            return cls(**values)
        except ValidationError as error:
            problems = list(_problems(error, cls))
            raise RecipeError("\n".join(f"{where}: {problem}" for problem in problems)) from error


def _finite(value: Any) -> Any:
    """JSON knows no infinity; pydantic reads 'inf'."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def load_recipe(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe that comes with fedlens (`fedlens recipes` lists them) or a YAML file, and apply `dotted.key=value`s."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise RecipeError(f"no such file: {path}")
        where = f"recipe {path}"
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RecipeError(f"{where}: not a text file in UTF-8: {error.reason} at byte {error.start}") from error
    else:
        packaged = PACKAGED / f"{name}.yaml"
        if not packaged.is_file():
            raise RecipeError(f"unknown recipe '{name}': {nearest(str(name), packaged_recipes())} (or give a .yaml file)")
        text, where = packaged.read_text(encoding="utf-8"), f"recipe {name}"
    values = parse(text, where)
    values.setdefault("name", path.stem)
    for override in sorted(overrides, key=depth_of):
        override_(values, override, where)
    return Recipe.from_dict(values, where)


def packaged_recipes() -> list[str]:
    """Names of the recipes that come with fedlens."""
    return sorted(str(path.relative_to(PACKAGED).with_suffix("")) for path in PACKAGED.rglob("*.yaml"))


def data_named(name: str, overrides: Sequence[str] = ()) -> Data:
    """A data set by its name, with `key=value`s for its source's settings, or for `partition` and what else stands beside it."""
    where = f"data {name}"
    values: dict[str, Any] = {"source": {"name": name}}
    for override in sorted(overrides, key=depth_of):
        beside = re.split(r"[.=]", override)[0] in Data.model_fields
        override_(values, override if beside else f"source.{override}", where)
    try:
        return Data(**values)
    except ValidationError as error:
        problems = (problem.removeprefix("source.").removeprefix("source: ") for problem in _problems(error, Data))
        raise RecipeError("\n".join(f"{where}: {problem}" for problem in problems)) from error


def _problems(error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[str]:
    """Say each thing that is wrong as `path: what was expected; got what`, with the nearest name for an unknown key."""
    for problem in error.errors():
        inner = problem.get("ctx", {}).get("error")
        path = prefix + tuple(str(step) for step in problem["loc"])
        if isinstance(inner, BadSettings):
            yield from _problems(inner.error, inner.part, path)
            continue
        shown = ".".join(path)
        if problem["type"] == "extra_forbidden":
            known = _fields(model, problem["loc"][:-1])
            yield f"{shown}: unknown key (value {problem['input']!r}); {_suggestion(path[-1], known)}"
        elif problem["type"] == "missing":
            yield f"{shown}: is missing"
        elif problem["type"] == "value_error":
            value = problem["input"]
            got = f"; got {value!r}" if isinstance(value, str | int | float) and repr(value) not in str(inner) else ""
            yield f"{shown}: {inner}{got}" if shown else str(inner)
        else:
            yield f"{shown}: {problem['msg'].replace('Input should be', 'expected')}; got {problem['input']!r}"


def _fields(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """The keys that a nested block takes."""
    for step in path:
        field = model.model_fields.get(str(step))
        annotations = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        model = next((part for part in annotations if isinstance(part, type) and issubclass(part, BaseModel)), model)
    return list(model.model_fields)


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"expected one of: {', '.join(known) or 'no key at all'}"
