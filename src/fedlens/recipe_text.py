"""How a recipe is written: YAML in which a text stays as it stands, and `dotted.key=value` overrides."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import yaml

from fedlens.registry import WrittenFloat, WrittenInt

TAG = "tag:yaml.org,2002:"


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names the place, what stands there and what was expected."""


class Loader(yaml.SafeLoader):
    """YAML as JSON has it: true and false, null, decimal numbers (`1e-3` is one) and nothing else that is no text.

    `010` is not 8, `12:30` not 750, `no` not false, and nothing is a date. A key given twice is an error.
    """

    yaml_implicit_resolvers: ClassVar = {}  # type: ignore[misc]
    yaml_constructors: ClassVar = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (f"{TAG}null", f"{TAG}str", f"{TAG}seq", None)
    }


class Dumper(yaml.SafeDumper):
    """Writes in quotes whatever text this loader, or that of another program, would take for something else."""


def _mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value if key.tag != f"{TAG}merge"]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise yaml.constructor.ConstructorError(None, None, f"key '{twice[0]}' is given twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


def _scalar(convert: Callable[[str], Any]) -> Callable[[Loader, yaml.ScalarNode], Any]:
    def construct(loader: Loader, node: yaml.ScalarNode) -> Any:
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


def _text(dumper: Dumper, text: str) -> yaml.ScalarNode:
    """Line breaks of all kinds are escaped: YAML would fold them."""
    return dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"')


Dumper.add_representer(str, _text)
Loader.add_constructor(f"{TAG}map", _mapping)
Loader.add_constructor(f"{TAG}bool", _scalar(lambda text: {"true": True, "false": False}[text.lower()]))
Loader.add_constructor(f"{TAG}int", _scalar(_integer))
Loader.add_constructor(f"{TAG}float", _scalar(_float))
for _loads in (Loader, Dumper):
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
        return _unshared(yaml.load(text, Loader))
    except RecursionError as error:
        raise RecipeError("not valid YAML: nested too deeply, or in itself") from error


def parse(text: str, where: str) -> dict[str, Any]:
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


def depth_of(override: str) -> int:
    """The whole comes before its parts, whatever their order: `server_rule=adam` before `server_rule.learning_rate=0.1`."""
    key = override.partition("=")[0]
    return key.removesuffix(".name").count(".")


def override_(values: dict[str, Any], override: str, where: str) -> None:
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
