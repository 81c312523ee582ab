"""Federated learning for computer vision."""

from fedlens.recipe import Data, Evaluation, Model, Recipe, load_recipe
from fedlens.recipe_text import RecipeError
from fedlens.train import Result, train

__version__ = "0.1.0"

__all__ = ["Data", "Evaluation", "Model", "Recipe", "RecipeError", "Result", "load_recipe", "train"]
