"""What the recipes that come with fedlens promise; minutes, so they run with `pytest -m slow`."""

import pytest

from fedlens import load_recipe, train
from fedlens.recipe import packaged_recipes

ACCURACY = {"quickstart": 0.80, "local": 0.25}  # alone, a client of a hundred pictures sees a few classes only


@pytest.mark.slow
@pytest.mark.parametrize("name", packaged_recipes())
def test_every_recipe_learns(name, quiet):
    result = train(load_recipe(name), terminal=quiet)
    assert result.summary["final"]["test/accuracy"] > ACCURACY.get(name, 0.75)
