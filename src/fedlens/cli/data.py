"""`fedlens data`: which data sets there are, preparing one, and who holds what."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console as Terminal

from fedlens.cli.shared import AsJson, Overrides, errors, print_json
from fedlens.data import SOURCES, Partition, Population, Source, describe
from fedlens.data.sources.base import Files, data_folder
from fedlens.data.statistics import LABEL_COLUMNS
from fedlens.experiment import population_in, population_of
from fedlens.recipe import data_named, load_recipe, packaged_recipes
from fedlens.recipe_text import RecipeError
from fedlens.registry import Entry
from fedlens.tracking.console import data_table, decoding, sources_table

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Look at data and at how they are divided.")

DataFolder = Annotated[Path | None, typer.Option("--from", help="where its files are", show_default="$FEDLENS_DATA, or ./data")]


@data_app.command("describe")
def describe_data(
    name: Annotated[str, typer.Argument(help="a recipe, or a data set that `fedlens data list` lists")],
    overrides: Overrides = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a page of plots and pictures", show_default=False)
    ] = None,
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="write every plot as SVG and PDF", show_default=False)] = None,
) -> None:
    """Say who holds what: clients, sizes, classes, and how far clients' labels lie from the whole's (EMD, from 0 to 2).

    Examples:

    - `fedlens data describe quickstart`
    - `fedlens data describe quickstart data.partition.alpha=0.1 --json`
    - `fedlens data describe quickstart --html quickstart.html --figures figures`
    - `fedlens data describe cifar10 path=~/data partition=hsu_dirichlet partition.alpha=0.1`
    """
    with errors(), Terminal(stderr=True).status("reading the data") as status:
        population, partition, seed, columns = named(name, overrides or [])
        try:
            found = describe(population, columns)
        except ValueError as error:
            raise RecipeError(f"data {name}: {error}") from error
        if html or figures:
            status.update("drawing")
            draw(population, found, partition, seed, columns, html, figures)
    if as_json:
        print_json(found)
    else:
        Terminal().print(data_table(found))
    for path in (html, figures):
        if path:
            print(f"written: {path}", file=sys.stderr)


@data_app.command("list")
def list_data(folder: DataFolder = None, as_json: AsJson = False) -> None:
    """List the data sets that fedlens can read: what is in them, their licence, where to get them, and whether they are there.

    Examples:

    - `fedlens data list`
    - `fedlens data list --from ~/datasets --json`
    """
    found = [data_set(entry, folder or data_folder()) for entry in SOURCES]
    if as_json:
        print_json(found)
        return
    Terminal().print(sources_table(found))
    print(f"\nlooked in: {folder or data_folder()}      decode pictures once: fedlens data prepare NAME")


@data_app.command("prepare")
def prepare_data(
    name: Annotated[str, typer.Argument(help="a data set that `fedlens data list` lists")],
    overrides: Overrides = None,
    folder: DataFolder = None,
    to: Annotated[Path | None, typer.Option(help="the folder to write", show_default="NAME-SIZE in the former")] = None,
    size: Annotated[int | None, typer.Option(help="height and width of the pictures", show_default="224")] = None,
    fit: Annotated[str | None, typer.Option(help="crop, pad or stretch what is not square", show_default="crop")] = None,
    missing: Annotated[str | None, typer.Option(help="refuse or skip what cannot be decoded", show_default="refuse")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="that decode", show_default="one for each core")] = None,
) -> None:
    """Decode a data set's pictures once, so that runs map them into memory. What was interrupted goes on where it was.

    Examples:

    - `fedlens data prepare flair --from ~/flair --size 256`
    - `fedlens data prepare landmarks --from ~/gld --to ~/gld-224 --missing skip`
    - `fedlens data prepare inaturalist split=geo_3k --from ~/inat`

    Then, in a recipe: `data.source={name: packed, path: FOLDER}`
    """
    given = {"path": folder, "size": size, "fit": fit, "missing": missing}
    settings = [f"{key}={value}" for key, value in given.items() if value is not None]
    with errors():
        data = data_named(name, [*settings, *(overrides or [])])
        if beside := data.model_fields_set - {"source"}:
            raise RecipeError(
                f"data {name}: {', '.join(sorted(beside))}: is a recipe's to say, pictures are prepared alike for all"
            )
        source, height = data.source, getattr(data.source, "size", None)
        target = to or getattr(source, "path", data_folder()) / (f"{name}-{height}" if height else name)
        with decoding(Terminal(stderr=True)) as watch:
            try:
                skipped = source.prepare(target, threads or os.cpu_count() or 1, watch)
            except ValueError as error:
                raise RecipeError(f"data {name}: {error}") from error
    for split, bad in skipped.items():
        print(f"{split}: {bad}", file=sys.stderr)
    print(f"prepared: {target}\nin a recipe: data.source={{name: packed, path: {target}}}")


def data_set(entry: Entry[type[Source]], folder: Path) -> dict[str, Any]:
    """What is known of a data set before it is read."""
    about = entry.part.about
    here: bool | None = None  # there are no files to look for
    if issubclass(entry.part, Files) and about.files:
        here = entry.part.is_in(folder)
    facts = {"contents": about.contents, "gigabytes": about.gigabytes, "licence": about.licence, "where": about.where}
    return {"name": entry.name, "about": entry.summary, **facts, "here": here}


def named(name: str, overrides: list[str]) -> tuple[Population, Partition | None, int, tuple[str, ...]]:
    """A recipe's data or a data set's; who divides it, by which seed, and in which columns labels may be."""
    if name in SOURCES.entries and name not in packaged_recipes():
        data = data_named(name, overrides)
        return population_in(data), data.partition if "partition" in data.model_fields_set else None, 0, LABEL_COLUMNS
    recipe = load_recipe(name, overrides)
    partition = recipe.data.partition if recipe.data else None
    return population_of(recipe), partition, recipe.seed, (*recipe.task.columns, *LABEL_COLUMNS)


def draw(
    population: Population,
    found: dict[str, Any],
    partition: Partition | None,
    seed: int,
    columns: tuple[str, ...],
    html: Path | None,
    folder: Path | None,
) -> None:
    from fedlens.report.data_page import data_page, data_plots  # what draws takes a second to import
    from fedlens.report.page import figures

    drawn = data_plots(population.train, columns, seed)
    if folder:
        figures(drawn, folder)
    if html:
        settings = {} if partition is None else partition.model_dump()
        known = {"partition": settings.pop("name", "its own clients"), **settings, "seed": seed}
        text = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(data_page(population, found, drawn, text, seed), encoding="utf-8")
