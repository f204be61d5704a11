"""One interface: a setting has one name, one place and, but for a reason, one default."""

import ast
import inspect
import re

import pytest

import pinfactory
from facades import FACADES

# Those of `pinfactory.paper` have the settings of the paper.
LEARNERS = {name: getattr(pinfactory, name) for name in FACADES if hasattr(pinfactory, name)}
ESTIMATORS = [name for name in LEARNERS if not name.endswith("Agent")]
AGENTS = [name for name in LEARNERS if name.endswith("Agent")]
TABLES = ["SpecialistClassifier", "SpecialistRegressor"]
TASKS = ["MetaSpecialistRegressor", "MetaSpecialistClassifier"]

# Settings whose defaults differ: why, and the default of each group that does not share the first.
EXCEPTIONS = {
    "n_experts": (
        "a mixture removes superfluous experts, so its number is a limit",
        4,
        {8: ["SpecialistMixture"]},
    ),
    "expert": (
        "tasks of images take convolutional experts; probed tasks are hard",
        "linear",
        {"auto": TASKS, "mlp": ["MetaSpecialistAgent"]},
    ),
    "expert_hidden": (
        "of the papers that each setting is compared with",
        (64,),
        {(40,): TASKS, (64, 64): AGENTS},
    ),
    "selector": (
        "a tree cuts features, of which an embedding has none of a meaning",
        "tree",
        {"mlp": TASKS},
    ),
    "selector_hidden": (
        "embeddings and observations need more than features",
        (10, 10),
        {(64,): TASKS, (32, 32): ["SpecialistAgent"]},
    ),
    "beta_selector": (
        "utilities have other units: log-likelihood, deviations, returns",
        25.0,
        {1.0: ["SpecialistMixture"], 30.0: TASKS},
    ),
    "beta_expert": (
        "utilities have other units: log-likelihood, deviations, returns",
        20.0,
        {1.0: ["SpecialistMixture"], 30.0: TASKS, 2.5: AGENTS},
    ),
    "momentum_selector": ("a step of an agent is thousands of decisions", 0.99, {0.9: AGENTS}),
    "momentum_expert": ("a step of an agent is thousands of decisions", 0.99, {0.9: AGENTS}),
    "max_iter": (
        "gradient steps of a table, of tasks; iterations of an ascent",
        3000,
        {200: ["SpecialistMixture"], 10_000: TASKS},
    ),
    "batch_size": (
        "of a table it follows the rows; else tasks, steps of a rollout, all tasks",
        "auto",
        {32: TASKS, 512: ["SpecialistAgent"], None: ["MetaSpecialistAgent"]},
    ),
    "learning_rate": (
        "found for each setting",
        0.006,
        {0.003: TASKS, 0.002: ["SpecialistAgent"], 0.001: ["MetaSpecialistAgent"]},
    ),
    "utility": (
        "free energies of tables are likelihoods; the paper's sinusoids squared errors",
        "likelihood",
        {"squared_error": ["MetaSpecialistRegressor"]},
    ),
    "critic_hidden": (
        "a critic of many tasks has more to know",
        (32, 32),
        {(64, 64): ["MetaSpecialistAgent"]},
    ),
    "n_epochs": ("found for each setting", 8, {4: ["MetaSpecialistAgent"]}),
    "n_initial_experts": (
        "all experts of an agent begin at once; of many tasks, two are learned first",
        None,
        {2: ["MetaSpecialistAgent"]},
    ),
    "growth_fraction": (
        "experts of an agent are split early; those of tasks when their selector has learned",
        0.1,
        {0.8: ["MetaSpecialistAgent"]},
    ),
    "n_steps": ("an episode of a task is a whole rollout", 64, {128: ["MetaSpecialistAgent"]}),
}
# `utility` comes first where a regressor is told what its answers are worth, and last where a
# dataclass adds it to the settings of all meta-learners.
UNORDERED = {"utility"}


def parameters(name):
    return inspect.signature(LEARNERS[name]).parameters


def shared():
    """Return the names of all settings of more than one learner, and who has them."""
    owners = {}
    for name in LEARNERS:
        for setting in parameters(name):
            owners.setdefault(setting, []).append(name)
    return {setting: names for setting, names in owners.items() if len(names) > 1}


@pytest.mark.parametrize("setting", shared())
def test_the_same_setting_has_the_same_default_or_a_reason(setting):
    found = {name: parameters(name)[setting].default for name in shared()[setting]}
    if setting not in EXCEPTIONS:
        assert len(set(map(repr, found.values()))) == 1, found
        return
    _, usual, others = EXCEPTIONS[setting]
    expected = {name: value for value, names in others.items() for name in names}
    assert found == {name: expected.get(name, usual) for name in found}


def test_every_exception_is_one():
    assert set(EXCEPTIONS) <= set(shared())


@pytest.mark.parametrize("group", [ESTIMATORS, AGENTS], ids=["estimators", "agents"])
def test_shared_settings_come_in_one_order(group):
    """Of two settings that two learners have, the same one comes first."""
    orders = [[s for s in parameters(name) if s in shared()] for name in group]
    for first in orders:
        for second in orders:
            common = [s for s in first if s in second and s not in UNORDERED]
            assert common == [s for s in second if s in first and s not in UNORDERED]


@pytest.mark.parametrize("name", LEARNERS)
def test_the_number_of_experts_comes_first_and_other_settings_are_named(name):
    settings = list(parameters(name).values())[1 if name in AGENTS else 0 :]
    assert settings[0].name == "n_experts"
    if name in ESTIMATORS:  # agents take settings by position, as those of stable-baselines3 do
        assert all(setting.kind is setting.KEYWORD_ONLY for setting in settings[1:])
    assert ("seed" if name in AGENTS else "random_state") in parameters(name)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_setting_is_documented_and_with_its_default(name):
    documented = LEARNERS[name].__doc__.split("Parameters\n")[1].split("Attributes\n")[0]
    lines = re.findall(r"^    (\w[\w, ]*?)(?: : (.*))?$", documented, re.MULTILINE)
    assert {each for names, _ in lines for each in names.split(", ")} == set(parameters(name))
    for setting, kind in lines:
        if told := re.search(r"default=(.+)$", kind):
            values = ast.literal_eval(told[1])
            names = setting.split(", ")
            each = values if len(names) > 1 and isinstance(values, tuple) else [values] * len(names)
            assert [parameters(name)[one].default for one in names] == list(each)


@pytest.mark.parametrize("name", LEARNERS)
def test_training_takes_callbacks_and_a_checkpoint(name):
    train = LEARNERS[name].learn if name in AGENTS else LEARNERS[name].fit
    taken = inspect.signature(train).parameters
    assert taken["callbacks"].default is None
    assert taken["checkpoint"].default is None
    assert taken["checkpoint"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_can_be_asked_the_same_questions(name):
    for question in (
        "responsibilities",
        "save",
        "get_params",
        "information_",
        "effective_experts_",
    ):
        assert hasattr(LEARNERS[name], question) or question in LEARNERS[name].__doc__
