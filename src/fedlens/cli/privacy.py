"""`fedlens privacy`: how private a training would be, before anybody trains."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, cast

import typer
from rich.console import Console as Terminal
from rich.table import Table

from fedlens.cli.shared import AsJson, errors, print_json
from fedlens.privacy import Guarantee, Mechanism, Plan, calibrate, delta_of, spent
from fedlens.privacy.accounting import Accountant, Accounting, Sampling
from fedlens.recipe_text import RecipeError

DRAWN = {
    "poisson": "each user takes part in a round by a coin of its own (Poisson), and nobody learns who did",
    "uniform": "each round draws exactly the cohort, all cohorts being equally likely, and nobody learns who took part",
    "all": "everybody takes part in each round, so there is no sampling to keep secret",
}


def privacy(
    population: Annotated[int, typer.Option(min=1, help="users there are, N")],
    cohort: Annotated[int, typer.Option(min=1, help="users a round takes, C; on average, if sampled by Poisson")],
    rounds: Annotated[int, typer.Option(min=1, help="noisy sums released, T")],
    epsilon: Annotated[float | None, typer.Option(help="find the least noise for this epsilon", show_default=False)] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="find epsilon; noise on the sum, in clipping bounds", show_default=False)
    ] = None,
    delta: Annotated[str, typer.Option(help="a number, or a power of the population")] = "N^-1.1",
    accountant: Annotated[str, typer.Option(help="pld (tight) or rdp (the moments accountant)")] = "pld",
    sampler: Annotated[str, typer.Option(help="poisson, uniform (exactly C; rdp only) or all")] = "poisson",
    accounting: Annotated[str, typer.Option(help="rounds, or flair2022: as FLAIR's published code counts them")] = "rounds",
    trained: Annotated[
        int | None, typer.Option(min=1, help="simulate the cohort by training so few, with its noise rescaled", show_default=False)
    ] = None,
    count_noise: Annotated[
        float | None, typer.Option(help="adaptive clipping: noise on how many lie within the bound", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how private a training would be, or how much noise it needs: give --epsilon or --noise-multiplier.

    Examples:

    - `fedlens privacy --population 41131 --cohort 5000 --rounds 5000 --epsilon 2`
    - `fedlens privacy --population 41131 --cohort 200 --rounds 5000 --noise-multiplier 1 --delta 1e-6 --json`
    - `fedlens privacy --population 41131 --cohort 5000 --rounds 5000 --epsilon 2 --trained 200 --count-noise 250`
    - `fedlens privacy --population 100 --cohort 100 --rounds 50 --epsilon 8 --sampler all --accountant rdp`
    """
    with errors(), Terminal(stderr=True).status("accounting"):
        try:
            plan: dict[str, Any] = {"population": population, "cohort_size": cohort, "rounds": rounds, "trained": trained}
            plan |= {"sampler": cast(Sampling, sampler), "accounting": cast(Accounting, accounting), "count_noise": count_noise}
            kind, probability = cast(Accountant, accountant), delta_of(delta, population)
            if epsilon is not None and noise_multiplier is None:
                mechanism = calibrate(Plan(**plan), epsilon, probability, kind)
            elif noise_multiplier is not None and epsilon is None:
                mechanism = Mechanism(**plan, noise_multiplier=noise_multiplier)
            else:
                raise ValueError("give either --epsilon, to learn the noise, or --noise-multiplier, to learn epsilon")
            guarantee = spent(mechanism, probability, kind)
            notes = remarks(mechanism, guarantee)
        except ValueError as error:
            raise RecipeError(f"privacy: {error}") from error
    if as_json:
        print_json(facts(mechanism, guarantee) | {"assumes": assumptions(mechanism), "notes": notes})
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in lines(mechanism, guarantee, delta).items():
        table.add_row(name, value)
    Terminal().print(table, highlight=False)
    for text in (*notes, "assumes: " + "; ".join(assumptions(mechanism))):
        Terminal().print("\n" + text, highlight=False, markup=False)


def facts(mechanism: Mechanism, guarantee: Guarantee) -> dict[str, Any]:
    """Everything, under names that do not let the trained cohort's noise pass for the accounted one's."""
    simulation = None
    if mechanism.trained is not None:
        scaled = {"noise_multiplier": mechanism.noise_multiplier, "update_noise_multiplier": mechanism.update_noise_multiplier}
        scaled |= {} if mechanism.count_noise is None else {"count_noise": mechanism.count_noise}
        simulation = {"trained": mechanism.trained} | {name: noise * mechanism.scale for name, noise in scaled.items()}
    return {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "accountant": guarantee.accountant,
        "neighbours": guarantee.neighbours,
        "holds_for_cohort": guarantee.holds_for_cohort,
        "simulated": guarantee.simulated,
        "population": mechanism.population,
        "cohort": mechanism.cohort_size,
        "sampler": mechanism.sampler,
        "sampling_probability": mechanism.sampling_probability,
        "rounds": mechanism.rounds,
        "accounting": mechanism.accounting,
        "charged_rounds": mechanism.charged_rounds,
        "noise_multiplier": mechanism.noise_multiplier,
        "update_noise_multiplier": mechanism.update_noise_multiplier,
        "count_noise": mechanism.count_noise,
        "noise_on_mean": mechanism.noise_on_mean,
        "simulation": simulation,
    }


def lines(mechanism: Mechanism, guarantee: Guarantee, delta: str) -> dict[str, str]:
    """The same, to be read."""
    named = f" = {delta}" if delta.startswith("N") else ""
    cohort = f"{mechanism.cohort_size:,} of {mechanism.population:,} users"
    found = {
        "epsilon": f"{guarantee.epsilon:.4f} at delta {guarantee.delta:.4g}{named}, by {guarantee.accountant.upper()}",
        "hides": f"{guarantee.neighbours}, with all they hold",
        "cohort": f"{cohort}, sampler {mechanism.sampler}, q = {mechanism.sampling_probability:.4g}",
        "rounds": f"{mechanism.rounds:,}",
        "noise multiplier": f"{mechanism.noise_multiplier:.6g}",
    }
    if mechanism.charged_rounds != mechanism.rounds:
        found["rounds"] += f", charged as {mechanism.charged_rounds:,} ({mechanism.accounting})"
    if mechanism.count_noise is not None:
        found["  on the updates"] = f"{mechanism.update_noise_multiplier:.6g}"
        found["  on the count"] = f"{mechanism.count_noise:g} users"
    found["noise on the mean"] = f"{mechanism.noise_on_mean:.4g} clipping bounds a coordinate"
    if mechanism.trained is not None:
        found["SIMULATED"] = (
            f"with {mechanism.trained:,} trained: noise multiplier {mechanism.noise_multiplier * mechanism.scale:.6g}"
        )
        if mechanism.count_noise is not None:
            found["SIMULATED"] += f" (updates {mechanism.update_noise_multiplier * mechanism.scale:.6g}"
            found["SIMULATED"] += f", count {mechanism.count_noise * mechanism.scale:g})"
    return found


def remarks(mechanism: Mechanism, guarantee: Guarantee) -> list[str]:
    """What one should know of these numbers in particular."""
    found = []
    if mechanism.trained is not None:
        found.append(
            f"simulated: epsilon is that of cohorts of {mechanism.cohort_size:,}. Training {mechanism.trained:,} with the rescaled "
            "noise shows how well those would do; what it would cost itself is another question (--cohort without --trained)."
        )
    if mechanism.accounting == "flair2022":
        honest = spent(replace(mechanism, accounting="rounds"), guarantee.delta, guarantee.accountant)
        found.append(
            f"flair2022: the published code charges ⌈T N / C⌉ rounds, having read rounds as epochs; this noise in the "
            f"{mechanism.rounds:,} that are trained costs epsilon {honest.epsilon:.4f}."
        )
    if guarantee.delta >= 1 / mechanism.population:
        found.append("delta is 1 / N or more: publishing all that one user holds, drawn at random, would satisfy it.")
    if mechanism.update_noise_multiplier > 2 * mechanism.noise_multiplier:
        times = mechanism.update_noise_multiplier / mechanism.noise_multiplier
        usual = f"{math.ceil(mechanism.cohort_size / 20):,}"
        found.append(f"the count takes most of the budget: updates get {times:.3g} times the noise; count noise {usual} is usual.")
    return found


def assumptions(mechanism: Mechanism) -> list[str]:
    return [
        DRAWN[mechanism.sampler],
        "an honest server clips each user's whole update, unweighted, adds the noise, and divides by the public cohort size",
        "nothing else leaves it that training users' data touched, be it losses, counts, or settings chosen by trial",
    ]
