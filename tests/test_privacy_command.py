"""`fedlens privacy`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedlens.cli import app

FLAIR = ("--population", 41131, "--cohort", 5000, "--rounds", 5000)
SMALL = ("--population", 1000, "--cohort", 100, "--rounds", 50)


def call(*arguments):
    return CliRunner().invoke(app, ["privacy", *(str(argument) for argument in arguments)])


def answer(*arguments):
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def read(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_noise_for_an_epsilon_and_the_epsilon_of_that_noise():
    found = answer(*FLAIR, "--epsilon", 2)
    assert found["noise_multiplier"] == pytest.approx(17.333271, abs=2e-6)
    assert found["epsilon"] <= 2
    assert found["delta"] == pytest.approx(8.402602224231827e-06)
    assert (found["accountant"], found["sampler"], found["simulated"]) == ("pld", "poisson", False)
    assert answer(*FLAIR, "--noise-multiplier", found["noise_multiplier"])["epsilon"] == found["epsilon"]
    assert answer(*FLAIR, "--epsilon", 2, "--accountant", "rdp")["noise_multiplier"] == pytest.approx(18.667905, abs=2e-6)


def test_the_table_says_what_is_hidden_by_how_much_and_what_that_assumes():
    text = read(*FLAIR, "--noise-multiplier", 18.667905, "--accountant", "rdp")
    assert "epsilon 2.0000 at delta 8.403e-06 = N^-1.1, by RDP" in text
    assert "noise multiplier 18.6679" in text
    for assumed in ("adding or removing one user", "Poisson", "nobody learns who did", "honest server", "public cohort size"):
        assert assumed in text
    assert "SIMULATED" not in text


def test_delta_is_a_number_or_a_name():
    few = answer(*SMALL, "--noise-multiplier", 2, "--delta", "1e-9", "--accountant", "rdp")
    more = answer(*SMALL, "--noise-multiplier", 2, "--delta", "N^-2", "--accountant", "rdp")
    assert (few["delta"], more["delta"]) == (1e-9, pytest.approx(1e-6))
    assert few["epsilon"] > more["epsilon"]
    assert "1 / N or more" in read(*SMALL, "--noise-multiplier", 2, "--delta", 0.001, "--accountant", "rdp")


def test_a_simulated_cohort_is_labelled_wherever_its_noise_is_said():
    given = (*FLAIR, "--noise-multiplier", 17.333271, "--trained", 200, "--count-noise", 250)
    found = answer(*given)
    assert (found["simulated"], found["holds_for_cohort"], found["cohort"]) == (True, 5000, 5000)
    assert found["noise_multiplier"] == 17.333271
    assert found["simulation"] == {
        "trained": 200,
        "noise_multiplier": pytest.approx(0.693331, abs=1e-6),
        "update_noise_multiplier": pytest.approx(0.693748, abs=1e-6),
        "count_noise": pytest.approx(10),
    }
    assert found["epsilon"] == answer(*FLAIR, "--noise-multiplier", 17.333271)["epsilon"]
    text = read(*given)
    assert "SIMULATED with 200 trained: noise multiplier 0.693331" in text
    assert "epsilon is that of cohorts of 5,000" in text
    assert "on the updates 17.3437" in text


def test_the_published_accounting_says_what_it_charges_and_what_the_noise_really_costs():
    given = (*FLAIR, "--noise-multiplier", 53.4907, "--accounting", "flair2022", "--accountant", "rdp")
    found = answer(*given)
    assert found["epsilon"] == pytest.approx(2.0, abs=1e-4)
    assert found["charged_rounds"] == 41_131
    honest = answer(*FLAIR, "--noise-multiplier", 53.4907, "--accountant", "rdp")["epsilon"]
    assert f"costs epsilon {honest:.4f}" in found["notes"][0]
    assert "5,000, charged as 41,131 (flair2022)" in read(*given)


def test_other_samplers_say_what_they_hide_and_assume():
    fixed = read(*SMALL, "--noise-multiplier", 8, "--sampler", "uniform", "--accountant", "rdp")
    assert "replacing one user by another" in fixed
    assert "exactly the cohort" in fixed
    everybody = read(
        "--population", 10, "--cohort", 10, "--rounds", 5, "--noise-multiplier", 8, "--sampler", "all", "--delta", 1e-5
    )
    assert "no sampling to keep secret" in everybody


def test_a_count_that_takes_most_of_the_budget_is_remarked_upon():
    assert "count noise 5 is usual" in read(*SMALL, "--noise-multiplier", 2, "--count-noise", 1.05, "--accountant", "rdp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (SMALL, "give either --epsilon, to learn the noise, or --noise-multiplier, to learn epsilon"),
        ((*SMALL, "--epsilon", 2, "--noise-multiplier", 2), "give either"),
        ((*SMALL, "--epsilon", 0), "epsilon: must lie above 0"),
        ((*SMALL, "--noise-multiplier", 0), "without noise, epsilon is infinite"),
        ((*SMALL, "--noise-multiplier", "nan"), "noise multiplier: must be"),
        ((*SMALL, "--noise-multiplier", 2, "--sampler", "uniform"), "only 'rdp'"),
        ((*SMALL, "--noise-multiplier", 2, "--sampler", "al"), "did you mean 'all'?"),
        ((*SMALL, "--noise-multiplier", 2, "--accountant", "renyi"), "accountant: unknown 'renyi'"),
        ((*SMALL, "--noise-multiplier", 2, "--accounting", "epochs"), "accounting: unknown 'epochs'"),
        ((*SMALL, "--noise-multiplier", 2, "--delta", "M^-1"), "neither a number nor a power of the population"),
        (("--population", 10, "--cohort", 11, "--rounds", 1, "--epsilon", 1), "11 users cannot be drawn from a population of 10"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(arguments, message):
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.startswith("fedlens: privacy: ")
    assert result.output.count("\n") == 1


def test_help_has_examples_and_costs_no_import_of_the_accountants():
    assert "fedlens privacy --population 41131" in " ".join(call("--help").stdout.split())
    code = "import sys, fedlens.cli; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
