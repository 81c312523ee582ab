import json
import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens import Recipe, RecipeError, load_recipe
from fedlens.algorithms.server_rules import ServerAdam
from fedlens.recipe import packaged_recipes
from fedlens.recipe_text import Loader
from fedlens.tasks.transforms import HorizontalFlip
from fedlens.tracking.trackers import TensorBoard

SMALL = {"rounds": 2, "cohort_size": 3}


def refused(overrides, name="quickstart"):
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, overrides)
    return str(caught.value)


@pytest.mark.parametrize("name", packaged_recipes())
def test_a_recipe_printed_in_full_reads_as_the_same_recipe(name, tmp_path):
    recipe = load_recipe(name)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe
    assert recipe.description


def test_infinite_concentration_survives_the_trip_through_yaml(tmp_path):
    recipe = load_recipe("quickstart", ["data.partition.alpha=.inf"])
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert math.isinf(load_recipe(tmp_path / "again.yaml").data.partition.alpha)
    text = json.dumps(recipe.to_dict(), allow_nan=False)
    assert math.isinf(Recipe.from_dict(json.loads(text)).data.partition.alpha)


def test_overrides_are_converted_to_the_type_of_the_field():
    recipe = load_recipe(
        "quickstart",
        [
            "rounds=7",
            "local_rule.learning_rate=1e-2",
            "server_rule.nesterov=true",
            "task.top_k=[3, 5]",
            "name=12",
            "description=2026-11-19",
            "checkpoint_seconds=1e1",
            "seed=1e3",
        ],
    )
    assert recipe.rounds == 7
    assert (recipe.name, recipe.description) == ("12", "2026-11-19")
    assert (recipe.checkpoint_seconds, recipe.seed) == (10.0, 1000)
    assert recipe.local_rule.learning_rate == 0.01
    assert recipe.server_rule.nesterov is True
    assert recipe.task.top_k == (3, 5)


def test_another_part_comes_with_its_own_defaults():
    by_name = load_recipe("quickstart", ["server_rule.name=adam", "server_rule.beta2=0.999"])
    by_block = load_recipe("quickstart", ["server_rule={name: adam, beta2: 0.999}"])
    assert by_name.server_rule == by_block.server_rule == ServerAdam(beta2=0.999)
    assert load_recipe("quickstart", ["server_rule=adam"]).server_rule == ServerAdam()


def test_a_part_is_named_before_its_settings_whatever_the_order():
    for name in ("server_rule=adam", "server_rule.name=adam"):
        assert load_recipe("quickstart", ["server_rule.beta2=0.999", name]).server_rule == ServerAdam(beta2=0.999)


def test_aliases_and_merged_keys_are_read_and_changed_one_by_one(tmp_path):
    path = tmp_path / "aliases.yaml"
    path.write_text(
        "rounds: 3\ncohort_size: 2\nlocal_rule: &rule {learning_rate: 0.3}\nserver_rule: *rule\n"
        "evaluation: {<<: &often {every: 2, batch_size: 9}, batch_size: 7}\n"
    )
    recipe = load_recipe(path, ["local_rule.learning_rate=0.1"])
    assert (recipe.local_rule.learning_rate, recipe.server_rule.learning_rate) == (0.1, 0.3)
    assert (recipe.evaluation.every, recipe.evaluation.batch_size) == (2, 7)


def test_overrides_reach_into_lists():
    changes = ["task.train_transforms=[horizontal_flip, {name: random_crop, size: 28}]", "task.train_transforms.1.padding=2"]
    assert load_recipe("quickstart", changes).task.train_transforms[1].padding == 2


def test_overrides_reach_into_what_stands_in_a_list_by_its_name_alone():
    flip = load_recipe("quickstart", ["task.train_transforms=[horizontal_flip]", "task.train_transforms.0.probability=0.3"])
    assert flip.task.train_transforms == (HorizontalFlip(probability=0.3),)
    tracker = load_recipe("quickstart", ["trackers=[{name: mlflow, uri: x}]", "trackers.0.name=tensorboard"])
    assert tracker.trackers == (TensorBoard(),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.top_k.0.x=1", "task.top_k.0 is 3 and has no parts"),
        ("task.top_k.2=1", "'2' is not a position in a list of 2"),
        ("task.top_k.²=1", "'²' is not a position"),
        ("task.top_k.-1.x=1", "'-1' is not a position"),
        ("task.top_k.name=1", "'name' is not a position"),
    ],
)
def test_overrides_that_lead_nowhere_in_a_list_are_refused(override, message):
    assert message in refused(["task.top_k=[3, 5]", override])


TEXTS = ["1e3", "1.10", "007", "12", "+1", "-0", "1_000", "0x1f", "0o17", "12:30", "2026-11-19", "on", "no", "y", ".5", "1.", "~x"]


@pytest.mark.parametrize("text", [*TEXTS, "a #b", "#7", "@x", "*x", "=", "<<"])
def test_a_text_stays_as_it_was_written(text, tmp_path):
    recipe = load_recipe("quickstart", [f"name={text}", f"description={text}", f"model.freeze={text}"])
    assert (recipe.name, recipe.description, recipe.model.freeze) == (text, text, text)
    (tmp_path / "again.yaml").write_text(recipe.to_yaml())
    assert load_recipe(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_a_list_or_a_path_stays_as_it_was_written(text):
    recipe = load_recipe("quickstart", [f"model.freeze=[{text}]", f"data.source={{name: packed, path: {text}}}"])
    assert recipe.model.freeze == (text,)
    assert str(recipe.data.source.path) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(deadline=None)
def test_every_text_survives_the_trip_through_yaml(text):
    recipe = Recipe(**SMALL, description=text)
    assert yaml.load(recipe.to_yaml(), Loader)["description"] == text
    assert yaml.safe_load(recipe.to_yaml())["description"] == text  # in the hands of others too


@pytest.mark.parametrize(("text", "number"), [("1e2", 100), ("100.0", 100), ("010", 10), ("+7", 7), ("1.5e1", 15)])
def test_numbers_are_decimal(text, number):
    assert load_recipe("quickstart", [f"rounds={text}"]).rounds == number


def test_in_python_a_text_is_a_text_and_what_was_validated_is_plain():
    with pytest.raises(RecipeError, match="name: expected a valid string; got 12"):
        Recipe.from_dict({**SMALL, "name": 12})
    recipe = load_recipe("quickstart", ["rounds=3", "local_rule.learning_rate=1e-2"])
    assert (type(recipe.rounds), type(recipe.local_rule.learning_rate)) == (int, float)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("local_rule.learning_rat=0.1", ["local_rule.learning_rat", "0.1", "did you mean 'learning_rate'"]),
        ("cohort_sise=3", ["cohort_sise", "did you mean 'cohort_size'"]),
        ("data.partition.alfa=3", ["data.partition.alfa", "did you mean 'alpha'"]),
        ("server_rule=adm", ["server_rule", "'adm'", "did you mean 'adam'"]),
        ("model=cnn_mcmahon", ["model.name", "cnn_mcmahon", "did you mean 'cnn_mcmahan'"]),
        ("rounds=many", ["rounds", "expected a valid integer", "'many'"]),
        ("rounds=true", ["rounds", "no true or false", "True"]),
        ("server_rule.learning_rate=false", ["server_rule.learning_rate", "no true or false"]),
        ("local_rule.learning_rate_factors={'*': false}", ["local_rule.learning_rate_factors", "no true or false"]),
        ("task.example_weights={name: by_class, weights: [1, true]}", ["task.example_weights.weights", "no true or false"]),
        ("description=true", ["description", "no true or false"]),
        ("description=null", ["description", "valid string", "None"]),
        ("description=\udcff", ["description", "text in Unicode", "'\\udcff'"]),
        ("rounds=1:30", ["rounds", "valid integer", "'1:30'"]),
        ("rounds=0x1f", ["rounds", "valid integer", "'0x1f'"]),
        ("rounds=!!int x", ["rounds", "valid integer", "!!int x"]),
        ("rounds=" + "9" * 5000, ["rounds", "exceeded maximum size"]),
        ("evaluation=!!timestamp 2026-13-13", ["evaluation", "!!timestamp"]),
        ("data.partition.clients=1e12", ["data.partition.clients", "less than or equal to", "1000000000000"]),
        ("name=../up", ["name", "can name a folder", "'../up'"]),
        ("name=/tmp/x", ["name", "can name a folder", "'/tmp/x'"]),
        ("name=..", ["name", "can name a folder"]),
        ("name=''", ["name", "can name a folder"]),
        ("task.top_k=&a [*a]", ["task.top_k=&a [*a]", "nested too deeply, or in itself"]),
        ("task.top_k=" + "[" * 3000, ["task.top_k=[[", "nested too deeply"]),
        ("evaluation={1: 2}", ["evaluation={1: 2}", "key 1 is not a text"]),
        ("device=mps", ["device", "expected auto, cpu, cuda", "mps"]),
        ("rounds=0", ["rounds", "greater than or equal to 1", "0"]),
        ("local_rule.momentum=1.5", ["local_rule.momentum", "less than 1", "1.5"]),
        ("local_rule.learning_rate=.nan", ["local_rule.learning_rate", "finite"]),
        ("local_rule.learning_rate=1e39", ["local_rule.learning_rate", "less than or equal to", "1e+39"]),
        ("server_rule.learning_rate=1e39", ["server_rule.learning_rate", "less than or equal to"]),
        ("server_rule={name: adam, epsilon: 1e200}", ["server_rule.epsilon", "less than or equal to"]),
        ("server_rule={name: yogi, tau: 1e200}", ["server_rule.tau", "less than or equal to"]),
        ("local_rule.schedule={name: cosine, final: 1e9}", ["local_rule.schedule.final", "less than or equal to"]),
        ("device=gpu", ["device", "cuda", "gpu"]),
        ("cohort_size=101", ["cohort_size", "101", "100"]),
        ("sampler=all", ["cohort_size", "all 100 clients", "10"]),
        ("local_rule.nesterov=true", ["local_rule", "momentum > 0"]),
        ("task.train_transforms=[{name: random_crop}]", ["task.train_transforms.0.size", "missing"]),
        ("task.evaluation_transforms=[horizontal_flip]", ["task.evaluation_transforms", "must not be random"]),
        ("setting=decentralised", ["setting", "'federated', 'centralised' or 'local'"]),
        ("data.source.name=nothing", ["data.source", "unknown data source 'nothing'", "fashion_mnist"]),
        ("rounds", ["'rounds'", "dotted.key=value"]),
        ("rounds.deep=3", ["rounds.deep=3", "has no parts"]),
        ("trackers.0=wandb", ["trackers"]),
    ],
)
def test_what_is_wrong_is_named_with_place_value_and_what_was_expected(override, parts):
    message = refused([override])
    assert message.startswith("recipe quickstart: ")
    for part in parts:
        assert part in message


def test_everything_that_is_wrong_is_said_at_once():
    assert len(refused(["rounds=0", "server_rule=adm", "local_work.epoch=3"]).splitlines()) == 3


def test_unknown_recipes_and_files_are_named():
    assert "did you mean 'quickstart'" in refused([], "quickstrat")
    assert "nowhere.yaml" in refused([], "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: 3\nrounds: 4\n", "'rounds' is given twice"),
        ("rounds: [3\n", "not valid YAML"),
        ("- rounds\n", "expected keys and values"),
        ("cohort_size: 3\n", "rounds: is missing"),
        ("rounds: 3\n4: 5\n", "key 4 is not a text"),
        ("rounds: 3\nserver_rule: {name: adam, 5: 1}\n", "key 5 is not a text"),
        ("rounds: &self [*self]\n", "not valid YAML"),
        ("name: Zoë\n".encode("latin-1"), "UTF-8"),
    ],
)
def test_broken_files_are_refused(tmp_path, text, message):
    (tmp_path / "broken.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in refused([], str(tmp_path / "broken.yaml"))


def test_a_file_s_name_is_the_recipe_s(tmp_path):
    (tmp_path / "mine.yaml").write_text("rounds: 3\ncohort_size: 2\n")
    assert load_recipe(tmp_path / "mine.yaml").name == "mine"


def test_settings_without_averaging_say_what_they_imply():
    federated = Recipe(**SMALL, server_rule="adam", local_rule={"momentum": 0.9})
    assert federated.resolved() is federated
    for setting in ("centralised", "local"):
        resolved = Recipe(**SMALL, setting=setting, server_rule="adam", local_rule={"momentum": 0.9}).resolved()
        assert (resolved.server_rule.name, resolved.server_rule.learning_rate) == ("sgd", 1.0)
        assert resolved.local_rule.keep_momentum
        assert resolved.resolved() == resolved
    assert Recipe(**SMALL, setting="centralised").resolved().cohort_size == 1


def test_settings_that_have_no_meaning_are_named():
    assert Recipe(**SMALL, setting="centralised", server_rule="adam", sampler="poisson").unused() == ["sampler", "server_rule"]
    assert Recipe(**SMALL, setting="centralised").unused() == []
    assert Recipe(**SMALL, server_rule="adam").unused() == []


def test_a_recipe_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Recipe(**SMALL).rounds = 3


def test_parts_of_parts_are_reached_without_saying_their_name_again():
    recipe = load_recipe("quickstart", ["local_rule.schedule.warmup_rounds=3"])
    assert (recipe.local_rule.schedule.name, recipe.local_rule.schedule.warmup_rounds) == ("constant", 3)


@pytest.mark.parametrize("text", ["&x y", "|", "a\nb", "!!x", "a # b", "> c"])
def test_a_text_on_the_command_line_needs_no_quotes(text):
    assert load_recipe("quickstart", [f"description={text}"]).description == text
