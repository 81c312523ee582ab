import pytest

from fedlens.algorithms.schedules import SCHEDULES, Constant, Cosine, Exponential, Linear


def test_constant():
    assert {Constant().factor(t, 9) for t in range(9)} == {1.0}


def test_exponential():
    assert Exponential(decay=0.5).factor(3, 100) == 0.125


def test_linear_ends_at_its_final_value_in_the_last_round():
    assert [Linear(final=0.2).factor(t, 5) for t in range(5)] == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_passes_its_middle_half_way():
    assert [Cosine(final=0.5).factor(t, 5) for t in (0, 2, 4)] == pytest.approx([1.0, 0.75, 0.5])


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES])
def test_warm_up_rises_linearly_to_the_schedule_s_first_value(name):
    schedule = SCHEDULES.get(name)(warmup_rounds=4)
    assert [schedule.factor(t, 20) for t in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert schedule.factor(4, 20) == pytest.approx(1.0)


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES])
def test_schedules_stay_between_zero_and_one_even_for_a_single_round(name):
    for rounds in (1, 2, 7):
        assert all(0 <= SCHEDULES.get(name)().factor(t, rounds) <= 1 for t in range(rounds))
