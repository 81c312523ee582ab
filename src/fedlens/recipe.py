"""An experiment as data: every setting typed and checked; YAML in, YAML out, overrides by dotted keys."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

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
from fedlens.registry import BadSettings, Block, WrittenFloat, WrittenInt, chosen_from, nearest
from fedlens.tasks import TASKS, Classification, Task
from fedlens.tracking.trackers import TRACKERS, Tracker

PACKAGED = Path(__file__).parent / "recipes"
TAG = "tag:yaml.org,2002:"
Positive = Annotated[int, Field(ge=1)]


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names the place, what stands there and what was expected."""


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
        return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)

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
    values = _parse(text, where)
    values.setdefault("name", path.stem)
    for override in sorted(overrides, key=_depth):
        _override(values, override, where)
    return Recipe.from_dict(values, where)


def packaged_recipes() -> list[str]:
    """Names of the recipes that come with fedlens."""
    return sorted(str(path.relative_to(PACKAGED).with_suffix("")) for path in PACKAGED.rglob("*.yaml"))


class _Loader(yaml.SafeLoader):
    """YAML as JSON has it: true and false, null, decimal numbers (`1e-3` is one) and nothing else that is no text.

    `010` is not 8, `12:30` not 750, `no` not false, and nothing is a date. A key given twice is an error.
    """

    yaml_implicit_resolvers: ClassVar = {}  # type: ignore[misc]
    yaml_constructors: ClassVar = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{TAG}null", f"{TAG}str", f"{TAG}seq", None)
    }


class _Dumper(yaml.SafeDumper):
    """Writes in quotes whatever text this loader, or that of another program, would take for something else."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != f"{TAG}merge"]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise yaml.constructor.ConstructorError(None, None, f"key '{twice[0]}' is given twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


def _scalar(convert: Callable[[str], Any]) -> Callable[[_Loader, yaml.ScalarNode], Any]:
    def construct(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        try:
            return convert(text)
        except (ValueError, KeyError) as error:
            raise yaml.constructor.ConstructorError(None, None, f"cannot read {text!r} so", node.start_mark) from error

    return construct


def _integer(text: str) -> WrittenInt:
    number = WrittenInt(text)
    number.text = text
    return number


def _float(text: str) -> WrittenFloat:
    number = WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    number.text = text
    return number


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Line breaks of all kinds are escaped: YAML would fold them."""
    return dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text)
_Loader.add_constructor(f"{TAG}map", _mapping)
_Loader.add_constructor(f"{TAG}bool", _scalar(lambda text: {"true": True, "false": False}[text.lower()]))
_Loader.add_constructor(f"{TAG}int", _scalar(_integer))
_Loader.add_constructor(f"{TAG}float", _scalar(_float))
for _loads in (_Loader, _Dumper):
    for _kind, _form, _first in (
        ("bool", "(true|True|TRUE|false|False|FALSE)$", "tTfF"),
        ("null", "(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
        ("int", "[-+]?(0|[1-9][0-9]*)$", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?$|[-+]?[0-9]+[eE][-+]?[0-9]+$", "-+.0123456789"),
        ("float", r"[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$", "-+."),
        ("merge", "<<$", "<"),
    ):
        _loads.add_implicit_resolver(f"{TAG}{_kind}", re.compile(_form), list(_first))


def _read(text: str) -> Any:
    """YAML as plain values."""
    try:
        return _unshared(yaml.load(text, _Loader))
    except RecursionError as error:
        raise RecipeError("not valid YAML: nested too deeply, or in itself") from error


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = _read(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{where}: expected keys and values, such as 'rounds: 10'; got {type(values).__name__}")
    return values


def _unshared(value: Any) -> Any:
    """A copy in which what an alias (`*name`) stands for is there as often as it is named, so that each can be changed."""
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    if not isinstance(value, dict):
        return value
    if other := [key for key in value if not isinstance(key, str)]:
        raise RecipeError(f"key {other[0]!r} is not a text; write it in quotes")
    return {key: _unshared(item) for key, item in value.items()}


def data_named(name: str, overrides: Sequence[str] = ()) -> Data:
    """A data set by its name, with `key=value`s for its source's settings, or for `partition` and what else stands beside it."""
    where = f"data {name}"
    values: dict[str, Any] = {"source": {"name": name}}
    for override in sorted(overrides, key=_depth):
        beside = re.split(r"[.=]", override)[0] in Data.model_fields
        _override(values, override if beside else f"source.{override}", where)
    try:
        return Data(**values)
    except ValidationError as error:
        problems = (problem.removeprefix("source.").removeprefix("source: ") for problem in _problems(error, Data))
        raise RecipeError("\n".join(f"{where}: {problem}" for problem in problems)) from error


def _depth(override: str) -> int:
    """The whole comes before its parts, whatever their order: `server_rule=adam` before `server_rule.learning_rate=0.1`."""
    key = override.partition("=")[0]
    return key.removesuffix(".name").count(".")


def _override(values: dict[str, Any], override: str, where: str) -> None:
    """Apply one `dotted.key=value`; a part's new name drops the settings of the part that was there."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"{where}: override '{override}' is not of the form dotted.key=value")
    try:
        value = _value(text)
    except RecipeError as error:
        raise RecipeError(f"{where}: override '{override}': {error}") from error
    *parents, last = key.split(".")
    place: Any = values
    for depth, step in enumerate(parents):
        at = _place(place, step, key, where)
        inner = place[at] if isinstance(place, list) else place.get(at)
        if isinstance(inner, str):  # `server_rule: adam` is short for `server_rule: {name: adam}`
            inner = {"name": inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict | list):
            raise RecipeError(f"{where}: override '{override}': {'.'.join(parents[: depth + 1])} is {inner!r} and has no parts")
        place[at] = inner
        place = inner
    at = _place(place, last, key, where)
    if at == "name" and parents:
        place.clear()
    place[at] = value


def _value(text: str) -> Any:
    """What stands behind an override's `=`: YAML, but on a command line a text needs no quotes and `#` begins no comment."""
    try:
        value = _read(text)
    except yaml.YAMLError:
        return text
    quoted = text.startswith(("'", '"')) or isinstance(value, list | dict)
    changed = isinstance(value, str) or re.search(r"(^|\s)#", text)  # `&x y` and `a # b` are texts too
    return text if changed and not quoted else value


def _place(inside: dict[str, Any] | list[Any], step: str, key: str, where: str) -> Any:
    """A step of a dotted key as what it is: a key of a block, or a position in a list."""
    if isinstance(inside, dict):
        return step
    positions = [str(position) for position in range(len(inside))]
    if step not in positions:
        raise RecipeError(f"{where}: override '{key}': '{step}' is not a position in a list of {len(inside)}")
    return positions.index(step)


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
