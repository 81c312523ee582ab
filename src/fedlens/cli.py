"""The command line: run, resume, recipes, show."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console as Terminal
from rich.table import Table

import fedlens
from fedlens.data import SOURCES, Population, Source, describe
from fedlens.data.sources.base import Files, data_folder
from fedlens.data.statistics import LABEL_COLUMNS
from fedlens.experiment import population_of
from fedlens.recipe import Recipe, RecipeError, load_recipe, packaged_recipes, source_named
from fedlens.registry import Entry, is_unicode
from fedlens.tracking.checkpoints import BadCheckpoint
from fedlens.tracking.console import closing_table, data_table, decoding, sources_table
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

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Look at data and at how they are divided.")
app.add_typer(data_app, name="data")

Overrides = Annotated[list[str] | None, typer.Argument(help="settings to change, as `dotted.key=value`", show_default=False)]
DataFolder = Annotated[Path | None, typer.Option("--from", help="where its files are", show_default="$FEDLENS_DATA, or ./data")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
RUN_FAILED, BAD_INPUT, BAD_FOLDER, INTERRUPTED = 1, 2, 3, 130


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


@data_app.command("describe")
def describe_data(
    recipe: Annotated[str, typer.Argument(help="a name that `fedlens recipes` lists, or a YAML file")],
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
    """
    with errors():
        loaded = load_recipe(recipe, overrides or [])
        with Terminal(stderr=True).status("reading the data") as status:
            population, columns = population_of(loaded), (*loaded.task.columns, *LABEL_COLUMNS)
            found = describe(population, columns)
            if html or figures:
                status.update("drawing")
                draw_data(loaded, population, found, columns, html, figures)
    if as_json:
        print_json(found)
    else:
        Terminal().print(data_table(found))
    for path in (html, figures):
        if path:
            print(f"written: {path}", file=sys.stderr)


@data_app.command("list")
def list_data(
    folder: DataFolder = None,
    as_json: AsJson = False,
) -> None:
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
        source = source_named(name, [*settings, *(overrides or [])])
        size = getattr(source, "size", None)
        target = to or getattr(source, "path", data_folder()) / (f"{name}-{size}" if size else name)
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


def draw_data(
    recipe: Recipe, population: Population, found: dict[str, Any], columns: Sequence[str], html: Path | None, folder: Path | None
) -> None:
    from fedlens.report.data_page import data_page, data_plots  # what draws takes a second to import
    from fedlens.report.page import figures

    drawn = data_plots(population.train, columns, recipe.seed)
    if folder:
        figures(drawn, folder)
    if html:
        partition = recipe.data.partition.model_dump() if recipe.data else {}
        known = {"partition": partition.pop("name", ""), **partition, "seed": recipe.seed}
        settings = ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(data_page(population, found, drawn, settings, recipe.seed), encoding="utf-8")


def say_unused(recipe: Recipe) -> None:
    if unused := recipe.unused():
        print(f"note: setting '{recipe.setting}' has no use for the recipe's {', '.join(unused)}", file=sys.stderr)


def show_result(result: Result, as_json: bool) -> None:
    if as_json:
        print_json(result.summary)
        return
    Terminal().print(closing_table(result.summary))
    print(f"\nrun folder: {result.folder}")


def print_json(content: Any) -> None:
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(content, indent=1, ensure_ascii=plain, allow_nan=False))


@contextmanager
def errors() -> Iterator[None]:
    """Turn what a user can mend into one line and an exit code; anything else is a bug and keeps its trace."""
    try:
        yield
    except RunFolderError as error:
        fail(error, BAD_FOLDER)
    except BadCheckpoint as error:
        fail(error, BAD_FOLDER)
    except (RecipeError, FileNotFoundError, ImportError) as error:
        fail(error, BAD_INPUT)
    except OSError as error:
        fail(error, RUN_FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def fail(error: Exception, code: int) -> None:
    print(f"fedlens: {error}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    if wrong := [argument for argument in sys.argv[1:] if not is_unicode(argument)]:
        print(f"fedlens: argument {wrong[0]!r} is not a text in UTF-8", file=sys.stderr)
        raise SystemExit(BAD_INPUT)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than a recipe
    app()
