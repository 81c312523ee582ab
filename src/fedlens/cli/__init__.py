"""The command line: run, resume, recipes, show, data, privacy."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console as Terminal
from rich.table import Table

import fedlens
from fedlens.cli.data import data_app
from fedlens.cli.privacy import privacy
from fedlens.cli.shared import BAD_INPUT, AsJson, Overrides, errors, print_json
from fedlens.recipe import Recipe, load_recipe, packaged_recipes
from fedlens.registry import is_unicode
from fedlens.tracking.console import closing_table
from fedlens.tracking.run_folder import RunFolderError, new_path
from fedlens.train import Result, train

app = typer.Typer(
    name="fedlens",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Federated learning for computer vision.

    Start with: `fedlens run quickstart`

    Exit codes: 0 done; 1 failed while running; 2 wrong usage, recipe or data; 3 the run folder cannot be used; 130 interrupted.
    """,
)

app.add_typer(data_app, name="data")
app.command()(privacy)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if show:
        print(f"fedlens {fedlens.__version__}")
        raise typer.Exit


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="a name that `fedlens recipes` lists, or a YAML file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="the run's folder", show_default="runs/NAME/DATE-xxxx")] = None,
    seed: Annotated[int | None, typer.Option(help="short for seed=N")] = None,
    device: Annotated[str | None, typer.Option(help="short for device=…: auto, cpu, cuda, cuda:1")] = None,
    as_json: AsJson = False,
) -> None:
    """Train as a recipe says.

    Examples:

    - `fedlens run quickstart`
    - `fedlens run quickstart rounds=60 local_rule.learning_rate=0.1 --seed 1`
    - `fedlens run quickstart server_rule=adam server_rule.learning_rate=0.01 --out runs/adam`
    - `fedlens run my.yaml setting=centralised --device cuda`
    """
    with errors():
        changes = list(overrides or [])
        changes += [f"seed={seed}"] if seed is not None else []
        changes += [f"device={device}"] if device is not None else []
        loaded = load_recipe(recipe, changes)
        say_unused(loaded)
        show_result(train(loaded, out=out or new_path(loaded.name)), as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the folder of a run that stopped")],
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits as if it had not been.

    Example: `fedlens resume runs/quickstart/2026-11-18-a3f1`
    """
    with errors():
        if not (folder / "recipe.yaml").is_file():
            raise RunFolderError(f"{folder} holds no run: it has no recipe.yaml")
        show_result(train(load_recipe(folder / "recipe.yaml"), out=folder, resume=True), as_json)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with fedlens.

    Example: `fedlens recipes`
    """
    with errors():
        loaded = {name: load_recipe(name) for name in packaged_recipes()}
    if as_json:
        print_json([{"name": name, "description": recipe.description} for name, recipe in loaded.items()])
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, recipe in loaded.items():
        table.add_row(name, recipe.description)
    Terminal().print(table)
    print("\nrun one: fedlens run NAME      see one: fedlens show NAME")


@app.command()
def show(
    recipe: Annotated[str, typer.Argument(help="a name that `fedlens recipes` lists, or a YAML file")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print a recipe in full, with every default: running that gives the same run.

    Examples:

    - `fedlens show quickstart`
    - `fedlens show quickstart setting=centralised > mine.yaml`
    """
    with errors():
        loaded = load_recipe(recipe, overrides or [])
        say_unused(loaded)
        resolved = loaded.resolved()
    if as_json:
        print_json(resolved.to_dict())
    else:
        print(resolved.to_yaml(), end="")


def say_unused(recipe: Recipe) -> None:
    if unused := recipe.unused():
        print(f"note: setting '{recipe.setting}' has no use for the recipe's {', '.join(unused)}", file=sys.stderr)


def show_result(result: Result, as_json: bool) -> None:
    if as_json:
        print_json(result.summary)
        return
    Terminal().print(closing_table(result.summary))
    print(f"\nrun folder: {result.folder}")


def main() -> None:
    if wrong := [argument for argument in sys.argv[1:] if not is_unicode(argument)]:
        print(f"fedlens: argument {wrong[0]!r} is not a text in UTF-8", file=sys.stderr)
        raise SystemExit(BAD_INPUT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than a recipe
    app()
