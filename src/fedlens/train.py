"""Train a model as a recipe says: the loop of every federated algorithm, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal
from torch import nn

from fedlens.algorithms.server_rules import ServerRule
from fedlens.algorithms.updates import Combined
from fedlens.data import Population
from fedlens.engines import Admission, Report, repeatable_layers
from fedlens.experiment import Agenda, Experiment
from fedlens.recipe import Recipe
from fedlens.state import State
from fedlens.tracking.console import Console
from fedlens.tracking.run import Run, Subject
from fedlens.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class Result:
    """What training gives: the model with its final weights, a row of numbers for each round, and their summary."""

    model: nn.Module
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    state: State
    folder: Path | None


def train(
    recipe: Recipe,
    *,
    model: nn.Module | None = None,
    population: Population | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    terminal: Terminal | None = None,
) -> Result:
    """Run an experiment from its first round, or from the last one that is on disk, to its end.

    model, population   of your own, in place of those that the recipe names
    out                 the run's folder; without one, nothing is written
    resume              go on with the run in that folder
    terminal            where to show progress; `rich.console.Console(quiet=True)` for nowhere
    """
    experiment = Experiment.of(recipe, model, population)
    recipe, engine = experiment.recipe, experiment.engine
    with repeatable_layers(engine.device), open_run(experiment, out, resume, terminal or Terminal(stderr=True)) as run:
        state, agenda = run.state, Agenda(experiment)
        for round in range(state.round, experiment.rounds):
            with run.timed("train"):
                state = experiment.enter(round, state)
                local_rate, server_rate = experiment.learning_rates(round)
                work = agenda.work(round)  # who takes part, and what each does
                admission = Admission(work.plan, state)
                updates = engine.run(work.prepared, state, recipe.local_rule, local_rate)  # Δ_k = w_k − x, a stream of [m, P]
                update = recipe.aggregator.combine(admission.admit(run.watch(updates, len(work.cohort))))  # Δ = Σ p_k Δ_k
                agenda.look_ahead(round + 1)  # the device still trains
                report = admission.report()
                row = experiment.row(round, work.cohort, state, report)
                state = advance(state, update, report, recipe.server_rule, server_rate)  # x ← x + η Δ
            if experiment.due(round):
                with run.timed("evaluate"):
                    row |= experiment.evaluate(state, round)
            run.record(state, report, row)
            state = run.state
        summary = run.finish()
    return Result(experiment.trained(state), run.history, summary, state, run.folder.path if run.folder else None)


def advance(state: State, update: Combined | None, report: Report, rule: ServerRule, learning_rate: float) -> State:
    """One step of the server; a round in which no update was admitted, or all weigh nothing, leaves the model as it is."""
    if update is None or report.admitted == 0 or not update.weight > 0:
        return replace(state, round=state.round + 1)
    x, memory = rule.step(state.x, update.vector, state.memory, learning_rate)
    kept = {**state.kept, **report.kept} if report.kept else state.kept
    return State(state.round + 1, x, update.statistics, update.counters, memory, kept, state.best)


def open_run(experiment: Experiment, out: str | Path | None, resume: bool, terminal: Terminal) -> Run:
    """Take the run's folder, if there is one, and announce the run."""
    recipe, folder = experiment.recipe, None
    if out is not None:
        folder = RunFolder.open(Path(out)) if resume else RunFolder.create(Path(out), recipe.to_yaml())
    elif resume or recipe.trackers:
        raise ValueError(f"{'resume' if resume else 'trackers'}: needs the run's folder; give it as out=")
    score = experiment.score()
    console = Console(terminal, experiment.rounds, score[0] if score else "")
    subject = Subject(
        description=experiment.describe(),
        begin=experiment.begin,
        trained=experiment.trained,
        score=score,
        names=experiment.population.train.clients.client_name,
        device=experiment.engine.device,
        engine=experiment.engine.name,
    )
    try:
        run = Run(subject, folder, console)
        if folder is not None:
            run.listeners = [tracker.open(recipe.name, folder.path, recipe.to_dict()) for tracker in recipe.trackers]
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    console.begin(experiment.headline(), run.state.round)
    return run
