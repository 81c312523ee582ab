"""What the recipes that come with fedlens promise; minutes, so they run with `pytest -m slow`."""

import pytest

from fedlens import load_recipe, train
from fedlens.recipe import packaged_recipes

# alone, a client of a hundred pictures sees a few classes only; of ten labels, one by chance has an AP of about 0.15
PROMISED = {"quickstart": 0.80, "local": 0.25, "flair/smoke-fl": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("name", packaged_recipes())
def test_every_recipe_learns(name, quiet):
    metric = "test/macro_ap" if name.startswith("flair/") else "test/accuracy"
    assert train(load_recipe(name), terminal=quiet).summary["final"][metric] > PROMISED.get(name, 0.75)
