"""Parts, registries, and their messages."""

from __future__ import annotations

import inspect
import json
from typing import Annotated

import pytest
from pydantic import BaseModel, ValidationError

import fedlens.tasks.example_weights as example_weights
from fedlens.algorithms.aggregators import AGGREGATORS
from fedlens.algorithms.local_work import LOCAL_WORK
from fedlens.algorithms.samplers import SAMPLERS
from fedlens.algorithms.schedules import SCHEDULES
from fedlens.algorithms.server_rules import SERVER_RULES
from fedlens.data import PARTITIONS, SOURCES
from fedlens.models import MODELS
from fedlens.registry import BadSettings, Part, Registry, UnknownName, chosen_from, nearest
from fedlens.tasks import TASKS, TRANSFORMS

SETTINGS = {  # of the parts that need some, and some that are hard to write down
    "fashion_mnist": {"path": "/somewhere"},
    "cifar10": {"path": "/somewhere"},
    "cifar100": {"path": "/somewhere"},
    "packed": {"path": "relative/place"},
    "hsu_dirichlet": {"clients": 7, "alpha": float("inf")},
    "random_crop": {"size": 3, "padding": 1},
    "random_resized_crop": {"size": 3, "max_aspect": 2.0},
    "resize": {"size": 3},
    "center_crop": {"size": 3},
    "classification": {
        "train_transforms": ["horizontal_flip", {"name": "random_crop", "size": 5}],
        "example_weights": {"name": "by_class", "weights": [1, 0.5]},
        "top_k": [2, 5],
    },
    "by_class": {"weights": [1.0, 0.0]},
}
PART_REGISTRIES = [SOURCES, PARTITIONS, TRANSFORMS, TASKS, example_weights.EXAMPLE_WEIGHTS]
PARTS = [pytest.param(registry, entry.name, id=entry.name) for registry in PART_REGISTRIES for entry in registry]


class Shape(Part):
    """What has an area."""


SHAPES: Registry[type[Shape]] = Registry("shape")


@SHAPES.register("circle", paper="Euclid, Elements III")
class Circle(Shape):
    """All points at one distance.

    And more to say.
    """

    radius: float = 1.0


@SHAPES.register("square")
class Square(Shape):
    """Four equal sides."""

    side: int


class Drawing(BaseModel):
    shape: Annotated[Shape, chosen_from(SHAPES)]


def test_entries_come_in_the_order_of_registration_with_what_the_catalogue_shows():
    assert [(entry.name, entry.part, entry.paper, entry.summary) for entry in SHAPES] == [
        ("circle", Circle, "Euclid, Elements III", "All points at one distance."),
        ("square", Square, None, "Four equal sides."),
    ]


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="shape 'circle' is registered twice"):
        SHAPES.register("circle")(Square)
    assert SHAPES.get("circle") is Circle


@pytest.mark.parametrize(
    "value", ["circle", {"name": "circle"}, {"name": "circle", "radius": 1}, Circle(), {"radius": 1.0, "name": "circle"}]
)
def test_all_spellings_of_a_part_build_the_same(value):
    assert SHAPES.build(value) == Circle(radius=1.0)
    assert Drawing(shape=value).shape == Circle()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cirle", r"unknown shape 'cirle': did you mean 'circle'\?"),
        ("xyz", "unknown shape 'xyz': choose from: circle, square"),
        ({"radius": 2}, "a shape needs a name: choose from: circle, square"),
        ({"name": 3}, "a shape needs a name"),
    ],
)
def test_a_wrong_name_is_an_error_that_helps(value, message):
    with pytest.raises(ValueError, match=message):
        SHAPES.build(value)
    with pytest.raises(ValidationError, match=message):
        Drawing(shape=value)


def test_an_unknown_name_can_be_told_from_other_errors():
    with pytest.raises(UnknownName):
        SHAPES.get("triangle")


@pytest.mark.parametrize("settings", [{"radius": "long"}, {"raduis": 1}, {"radius": float("nan")}, {"radius": float("inf")}])
def test_bad_settings_carry_whose_they_are_and_where_they_stand(settings):
    with pytest.raises(BadSettings) as caught:
        SHAPES.build({"name": "circle", **settings})
    assert caught.value.part is Circle
    assert [error["loc"] for error in caught.value.error.errors()] == [tuple(settings)]


class Ellipse(Circle):
    """Is no circle, and nobody has registered it."""


def test_a_class_of_your_own_is_never_written_under_its_parent_s_name():
    drawing = Drawing(shape=Ellipse(radius=2))
    name = f"{Ellipse.__module__}.Ellipse"
    assert drawing.model_dump() == {"shape": {"name": name, "radius": 2.0}}
    with pytest.raises(ValidationError, match=rf"shape '{name}' is not registered: decorate the class"):
        Drawing(**drawing.model_dump())
    assert Drawing(shape=drawing.shape) == drawing
    assert Circle.name == "circle"


def test_what_is_no_part_of_this_registry_is_refused():
    for value in (3, None, ["circle"], PARTITIONS.build("iid")):
        with pytest.raises(ValidationError):
            Drawing(shape=value)


def test_a_part_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        Circle().radius = 2.0


@pytest.mark.parametrize(("registry", "name"), PARTS)
def test_every_part_is_written_as_plain_values_from_which_it_is_built_again(registry, name):
    part = registry.build({"name": name, **SETTINGS.get(name, {})})
    assert part.name == name
    assert registry.build(part.model_dump()) == part
    assert registry.build(json.loads(part.model_dump_json())) == part
    assert registry.build(part.model_dump(mode="json", exclude_none=True)) == part


@pytest.mark.parametrize("registry", [*PART_REGISTRIES, MODELS], ids=lambda registry: registry.kind)
def test_every_entry_has_a_summary_of_one_line_for_the_catalogue(registry):
    assert list(registry)
    for entry in registry:
        assert len(entry.summary) > 10, entry.name
        assert entry.summary != (entry.part.__mro__[1].__doc__ if isinstance(entry.part, type) else "")


def test_nearest_offers_one_name_or_all_of_them_or_says_that_there_is_none():
    assert nearest("adm", ["yogi", "adam"]) == "did you mean 'adam'?"
    assert nearest("zzz", ["yogi", "adam"]) == "choose from: adam, yogi"
    assert nearest("zzz", []) == "choose from: nothing"


@pytest.mark.parametrize("registry", [SOURCES, PARTITIONS, TASKS, SAMPLERS, LOCAL_WORK, AGGREGATORS, SERVER_RULES, SCHEDULES])
def test_every_registered_part_fills_in_what_its_interface_leaves_open(registry):
    for entry in registry:
        for name in dir(entry.part):
            found = inspect.getattr_static(entry.part, name)
            function = found.fget if isinstance(found, property) else found
            if inspect.isfunction(function):
                assert "NotImplementedError" not in function.__code__.co_names, f"{entry.name}.{name}"
