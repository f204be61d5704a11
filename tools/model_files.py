"""Write a small file of every kind of model, and what the model answers.

`python tools/model_files.py FOLDER [KIND …]`

The files serve as fixtures of the file format (`tests/persistence/fixtures/`) and as what
`tools/fuzz_files.py` alters. A new kind of model gets an entry in `MODELS`.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Kind(NamedTuple):
    """How to fit a small model of a kind, and a question whose answer shows what it learned."""

    fit: Callable[[], Any]
    answer: Callable[[Any], np.ndarray]


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return 60 samples of three features, and a target."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    return x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * random.normal(size=60)


def images(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 120 random images of twelve classes, and the classes."""
    random = np.random.default_rng(0)
    return random.uniform(size=(120, side, side)), np.repeat(np.arange(12), 10)


def image_tasks(side: int = 28) -> Any:
    """Return few-shot tasks of two classes of random images."""
    from pinfactory.meta.tasks import ArrayTasks

    class LabelledTasks(ArrayTasks):
        """Tasks whose images are known with all their classes, as pre-training needs them."""

        def labelled(self, split: str) -> tuple[np.ndarray, np.ndarray]:
            """Return all images of a split as bytes, and their classes as numbers from 0 on."""
            chosen = np.flatnonzero(np.isin(images(side)[1], self.classes(split)))
            labels = np.unique(images(side)[1][chosen], return_inverse=True)[1]
            return (255 * np.asarray(self.x)[chosen]).astype(np.uint8), labels.astype(np.int32)

    return LabelledTasks(*images(side), ways=2, shots=2, queries=2, validation=0.2)


def few_shot(side: int) -> Callable[[Any], np.ndarray]:
    """Return a question to a few-shot learner."""

    def answer(learner: Any) -> np.ndarray:
        x, y = images(side)
        return learner.adapt(x[[0, 1, 10, 11]], y[[0, 1, 10, 11]]).predict_proba(x[2:6])

    return answer


def _classifier() -> Any:
    from pinfactory import SpecialistClassifier

    x, y = table()
    labels = np.where(y > 0, "high", "low")
    model = SpecialistClassifier(2, selector_hidden=(4,), max_iter=20, random_state=0)
    return model.fit(x, labels)


def _regressor() -> Any:
    from pinfactory import SpecialistRegressor

    model = SpecialistRegressor(2, selector_hidden=(4,), max_iter=20, random_state=0)
    return model.fit(*table())


def _mixture() -> Any:
    from pinfactory import SpecialistMixture

    return SpecialistMixture(3, random_state=0).fit(table()[0])


def _agent() -> Any:
    from pinfactory.rl import SpecialistAgent

    hidden = {"selector_hidden": (4,), "critic_hidden": (4,)}
    agent = SpecialistAgent("CartPole-v1", 2, n_envs=2, n_steps=8, batch_size=16, **hidden)
    return agent.learn(16)


def _agent_answer(agent: Any) -> np.ndarray:
    return np.asarray(agent.predict(np.array([0.01, 0.0, 0.02, 0.0]), deterministic=True)[0])


def _meta_agent() -> Any:
    from pinfactory.rl.meta import MetaSpecialistAgent, pendulum_tasks

    agent = MetaSpecialistAgent(
        pendulum_tasks(), 2, n_tasks=2, n_steps=8, selector_units=4, expert_hidden=(4,), seed=0
    )
    return agent.learn(1)


def _meta_agent_answer(agent: Any) -> np.ndarray:
    from pinfactory.rl.meta import pendulum_tasks

    return agent.adapt(pendulum_tasks().env).responsibilities_


def _meta_regressor() -> Any:
    from pinfactory.meta import MetaSpecialistRegressor
    from pinfactory.meta.tasks import Sinusoids

    learner = MetaSpecialistRegressor(
        2, expert_hidden=(4,), selector_hidden=(4,), max_iter=2, batch_size=2, random_state=0
    )
    return learner.fit(Sinusoids(shots=3, queries=3))


def _meta_regressor_answer(learner: Any) -> np.ndarray:
    x = np.linspace(-1.0, 1.0, 5)[:, None]
    return learner.adapt(x, np.sin(x[:, 0])).predict(x)


def _meta_classifier() -> Any:
    from pinfactory.meta import MetaSpecialistClassifier

    learner = MetaSpecialistClassifier(
        2, expert_hidden=(4,), selector_hidden=(4,), max_iter=2, batch_size=2, random_state=0
    )
    return learner.fit(image_tasks(4))


def _image_classifier() -> Any:
    from pinfactory.meta import MetaSpecialistClassifier

    learner = MetaSpecialistClassifier(
        2, expert="conv", rank=2, max_iter=4, batch_size=2, random_state=0
    )
    return learner.fit(image_tasks())


def _paper_mixture() -> Any:
    from pinfactory.paper import GradientMixture

    model = GradientMixture(2, selector_hidden=(4,), max_iter=20, random_state=0)
    return model.fit(table()[0])


def _paper_regressor() -> Any:
    from pinfactory.meta.tasks import Sinusoids
    from pinfactory.paper import TaskRegressor

    learner = TaskRegressor(
        2, expert_hidden=(4,), selector_hidden=(4,), max_iter=2, batch_size=2, random_state=0
    )
    return learner.fit(Sinusoids(shots=3, queries=3))


def _paper_classifier() -> Any:
    from pinfactory.paper import TaskClassifier

    learner = TaskClassifier(2, selector_hidden=(4,), max_iter=2, batch_size=2, random_state=0)
    return learner.fit(image_tasks())


def _baseline(name: str) -> Kind:
    def fitted() -> Any:
        from pinfactory import baselines

        return getattr(baselines, name)(max_iter=2, batch_size=2).fit(image_tasks())

    return Kind(fitted, few_shot(28))


def _paper_baseline(name: str) -> Kind:
    def fitted() -> Any:
        from pinfactory import paper

        return getattr(paper, name)(max_iter=2, batch_size=2).fit(image_tasks())

    return Kind(fitted, few_shot(28))


MODELS: dict[str, Kind] = {
    "SpecialistClassifier": Kind(_classifier, lambda m: m.predict_proba(table()[0])),
    "SpecialistRegressor": Kind(_regressor, lambda m: m.predict(table()[0])),
    "SpecialistMixture": Kind(_mixture, lambda m: m.score_samples(table()[0])),
    "SpecialistAgent": Kind(_agent, _agent_answer),
    "MetaSpecialistAgent": Kind(_meta_agent, _meta_agent_answer),
    "MetaSpecialistRegressor": Kind(_meta_regressor, _meta_regressor_answer),
    "MetaSpecialistClassifier": Kind(_meta_classifier, few_shot(4)),
    "MetaSpecialistClassifier-images": Kind(_image_classifier, few_shot(28)),
    "MAML": _baseline("MAML"),
    "ANIL": _baseline("ANIL"),
    "MatchingNetworks": _baseline("MatchingNetworks"),
    "PrototypicalNetworks": _baseline("PrototypicalNetworks"),
    "PreTraining": _baseline("PreTraining"),
    "paper.GradientMixture": Kind(_paper_mixture, lambda m: m.score_samples(table()[0])),
    "paper.MAML": _paper_baseline("maml"),
    "paper.MatchingNetworks": _paper_baseline("matching_networks"),
    "paper.TaskRegressor": Kind(_paper_regressor, _meta_regressor_answer),
    "paper.TaskClassifier": Kind(_paper_classifier, few_shot(28)),
}


def write(folder: Path, kinds: list[str]) -> None:
    """Fit a small model of every kind named; save it as `folder`/KIND.pin, its answer as .npy."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such short trainings do not converge
            model = MODELS[kind].fit()
            model.save(folder / f"{kind}.pin")
            np.save(folder / f"{kind}.npy", MODELS[kind].answer(model))
        print(folder / f"{kind}.pin")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a small file of every kind of model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", default=list(MODELS), metavar="KIND")
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(MODELS):
        parser.error(f"unknown kinds {sorted(unknown)}; there are {', '.join(MODELS)}")
    write(given.folder, given.kinds)
