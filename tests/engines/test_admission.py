import math

import numpy as np
import pytest
import torch

from fedlens.algorithms.aggregators import WeightedMean
from fedlens.algorithms.local_work import Epochs
from fedlens.algorithms.server_rules import ServerMomentum
from fedlens.algorithms.updates import Updates
from fedlens.engines import Admission
from fedlens.state import State
from fedlens.train import advance

SIZE = 6
PLAN = Epochs(batch_size=2).plan(np.array([0, 4, 7, 9, 9]), np.arange(9), np.arange(4), seed=0, round=0)

BEFORE = State(0, torch.zeros(SIZE), torch.zeros(2), torch.zeros(1, dtype=torch.int64))


def update(client, vector=None, size=None, **changed):
    """A well-formed update of one client, or one with something changed."""
    good = {
        "clients": np.array([client]),
        "sizes": torch.tensor([float(PLAN.sizes[client]) if client < 4 else 1.0]) if size is None else torch.tensor([size]),
        "vectors": torch.full((1, SIZE), client + 1.0) if vector is None else vector,
        "statistics": torch.ones(1, 2),
        "counters": torch.ones(1, 1, dtype=torch.int64),
        "loss": torch.tensor([1.0]),
        "trained": np.array([4]),
    }
    values = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in (good | changed).items()}
    return Updates(**values)


def admitted(*updates, before=BEFORE):
    """The report on some updates, and what they come to."""
    admission = Admission(PLAN, before)
    combined = WeightedMean().combine(admission.admit(updates))
    return admission.report(), combined


BAD = {
    "one NaN": {"vector": torch.tensor([[0, 0, math.nan, 0, 0, 0.0]])},
    "all NaN": {"vector": torch.full((1, SIZE), math.nan)},
    "infinite": {"vector": torch.full((1, SIZE), math.inf)},
    "so large that its norm is infinite": {"vector": torch.full((1, SIZE), 3e38)},
    "too short": {"vector": torch.zeros(1, SIZE - 1)},
    "too long": {"vector": torch.zeros(1, SIZE + 1)},
    "transposed": {"vector": torch.zeros(SIZE, 1)},
    "of another type": {"vector": torch.zeros(1, SIZE, dtype=torch.float64)},
    "NaN in a buffer": {"statistics": torch.tensor([[1.0, math.nan]])},
    "negative weight": {"size": -1.0},
    "weight NaN": {"size": math.nan},
    "weight infinite": {"size": math.inf},
    "weight larger than what it holds": {"size": 1e30},
    "two weights": {"sizes": torch.ones(2)},
    "loss NaN": {"loss": torch.tensor([math.nan])},
    "loss infinite": {"loss": torch.tensor([math.inf])},
    "two losses": {"loss": torch.ones(2)},
    "too few statistics": {"statistics": torch.ones(1, 1)},
    "too many statistics": {"statistics": torch.ones(1, 3)},
    "counters of another type": {"counters": torch.ones(1, 1)},
    "no counters": {"counters": torch.ones(1, 0, dtype=torch.int64)},
    "no count of images": {"trained": np.array([], dtype=np.int64)},
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_update_is_left_out_and_named_and_changes_nothing_for_the_others(what):
    report, combined = admitted(update(0), update(1, **BAD[what]), update(2))
    expected_report, expected = admitted(update(0), update(2))
    assert torch.equal(combined.vector, expected.vector)
    assert torch.equal(combined.statistics, expected.statistics)
    assert torch.equal(combined.counters, expected.counters)
    assert list(report.rejected) == [1]
    assert report.rejected[1]
    assert (report.admitted, report.images, report.loss) == (2, 8, expected_report.loss)


def test_counters_of_a_bad_update_do_not_count():
    bad, good = BAD["one NaN"] | {"counters": torch.tensor([[9]])}, {"counters": torch.tensor([[-3]])}
    for updates in ((update(0, **good), update(1, **bad)), (update(1, **bad), update(0, **good))):
        assert admitted(*updates)[1].counters.tolist() == [-3]


def test_a_statistic_that_is_infinite_from_the_start_is_no_fault_of_the_client_that_leaves_it():
    before = State(0, torch.zeros(SIZE), torch.tensor([-math.inf, 2.0]), BEFORE.counters)
    left, moved = (torch.tensor([[value, 3.0]]) for value in (-math.inf, 0.0))
    report, combined = admitted(
        update(0, statistics=left),
        update(1, statistics=moved),
        update(2, statistics=left),
        update(3, statistics=left),
        before=before,
    )
    assert list(report.rejected) == [1]
    assert combined.statistics.tolist() == [-math.inf, 3.0]


def test_a_second_update_of_a_client_is_refused_and_its_first_one_kept():
    report, combined = admitted(update(0), update(1), update(1, vector=torch.full((1, SIZE), 100.0)))
    assert torch.equal(combined.vector, admitted(update(0), update(1))[1].vector)
    assert "second update" in report.rejected[1]


def test_whoever_is_not_in_the_cohort_is_refused():
    report, combined = admitted(update(0), update(17))
    assert torch.equal(combined.vector, admitted(update(0))[1].vector)
    assert "not in the cohort" in report.rejected[17]


def test_an_empty_client_weighs_nothing():
    report, combined = admitted(update(0), update(3))
    assert torch.equal(combined.vector, admitted(update(0))[1].vector)
    assert (report.admitted, report.empty) == (1, 1)


def test_a_chunk_of_many_clients_loses_only_its_bad_rows():
    vectors = torch.ones(3, SIZE)
    vectors[1, 2] = math.nan
    chunk = Updates(
        clients=np.arange(3),
        sizes=torch.tensor([4.0, 3.0, 2.0]),
        vectors=vectors,
        statistics=torch.ones(3, 2),
        counters=torch.ones(3, 1, dtype=torch.int64),
        loss=torch.ones(3),
        trained=np.array([4, 3, 2]),
        kept={"momentum": torch.arange(3.0)[:, None].expand(3, SIZE)},
    )
    admission = Admission(PLAN, BEFORE)
    combined = WeightedMean().combine(admission.admit([chunk]))
    report = admission.report()
    assert torch.equal(combined.vector, torch.ones(SIZE))
    assert (list(report.rejected), report.images) == ([1], 6)
    assert set(report.kept) == {0, 2}


@pytest.mark.parametrize("updates", [[], [update(0, **BAD["one NaN"]), update(1, **BAD["all NaN"])], [update(3)]])
def test_if_nothing_is_admitted_the_model_and_the_server_stay_as_they_are(updates):
    rule = ServerMomentum()
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    state = State(4, x, torch.ones(2), torch.ones(1), {"momentum": torch.ones(SIZE)})
    report, combined = admitted(*updates)
    after = advance(state, combined, report, rule, 1.0)
    assert after.round == 5
    assert after.x is state.x
    assert after.memory is state.memory
    assert after.statistics is state.statistics


def test_what_was_sent_is_counted_in_bytes():
    assert admitted(update(0), update(1))[0].bytes_up == 2 * (4 * SIZE + 4 * 2 + 8 * 1 + 4)
