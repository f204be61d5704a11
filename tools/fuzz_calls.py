"""Call learners with bad settings and data: `python tools/fuzz_calls.py -n 10000 [LEARNER …]`.

Hypothesis draws the calls: a learner with one or two other settings, a `fit` on altered data, or a
question to a fitted learner with altered data. Every call must end in a documented error
(`ValueError`, `TypeError`, `FloatingPointError`, or `FileNotFoundError` for a text as data; after
which the learner is what it was before)
or in right answers: finite, responsibilities that sum to one, information within its bounds.
Whatever else happens (another error, NaN, more than 1 GB more, more than a minute of computing) is
printed with the call, and the exit code is 1.
"""

import argparse
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
from counts import Trial, record, recorded
from fuzz_files import MOST_MEGABYTES, MOST_SECONDS, Outcome, megabytes, time_limit, where_raised
from hypothesis import strategies as st
from model_files import image_tasks, table

# Calls that Hypothesis draws from one seed; the next ones are drawn from the next.
BATCH = 500
# The last for a text in place of data, which is taken for the path of a file.
REFUSED = (ValueError, TypeError, FloatingPointError, FileNotFoundError)
# Values for any setting. Whoever asks for large sizes gets them, so there are none here.
SETTINGS: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 0.0, 0.5, 1.0, -0.5, 1e-30, 1e30, math.nan, math.inf),
    *(
        "",
        "a",
        "auto",
        "linear",
        "mlp",
        "exact",
        "sampled",
        "constant",
        b"a",
        (),
        (0,),
        (3,),
        (2, 2),
    ),
    *([], [3], {}, {"a": 1}, object(), len, np.float64(2.0), np.int64(2), np.zeros(2), 1 + 1j),
]
NUMBERS = [0.0, 1.0, -1.0, 1e-300, 1e-30, 1e-8, 1e8, 1e30, 1e200, 1e308, math.nan, math.inf]
# What is no array of numbers, in place of one.
STRANGE: list[Any] = [None, "text", 3, [], [[]], {}, object(), [[1, 2], [3]], np.zeros((0, 3))]


TRIAL = Trial(
    "bad_calls",
    "Calls with bad settings, data and questions",
    """
Hypothesis draws a call with other settings, altered data or an altered question. It is refused with
a `ValueError`, `TypeError`, `FloatingPointError`, or `FileNotFoundError` for a text, which is taken
for a path; after that the learner is what it was before. Or it is answered: finite,
responsibilities that sum to one, information within its bounds. Anything else is a fault: another
error, NaN, more than a gigabyte or more than a minute of computing.
""",
    "python tools/fuzz_calls.py -n 10000 --record results",
)


def _ask_responsibilities(model: Any, *question: Any) -> np.ndarray:
    return model.responsibilities(*question)


class Learner(NamedTuple):
    """How to make a small learner, train it, and ask it with arrays of the shapes given.

    There are so many questions for each call that trains: where other settings take seconds to
    compile there are more. A learner whose data are no arrays is trained on what it is always.
    """

    make: Callable[..., Any]
    train: Callable[..., Any]
    data: Callable[[], tuple[Any, ...]]
    ask: Callable[..., np.ndarray]
    questions: Callable[[], tuple[Any, ...]]
    responsibilities: Callable[..., np.ndarray] = _ask_responsibilities
    questions_per_training: int = 9


class Call(NamedTuple):
    """Settings that are changed, arrays for `fit` and arrays for a question; None: as they are."""

    settings: dict[str, Any]
    data: tuple[Any, ...] | None = None
    question: tuple[Any, ...] | None = None


@st.composite
def altered(draw: st.DrawFn, array: np.ndarray) -> Any:
    """Return an array with numbers, rows, columns or its type changed."""
    kind = draw(st.sampled_from(["numbers", "scale", "rows", "shape", "type", "strange"]))
    if kind == "strange":
        return draw(st.sampled_from(STRANGE))
    if kind == "type":
        dtype = draw(st.sampled_from([str, object, bool, np.float16, np.float32, np.int8, complex]))
        return array.astype(dtype)
    if kind == "shape":
        flat = st.sampled_from(
            [array[..., None], array.ravel(), array[:, None], array[None], array[..., :0]]
        )
        return draw(flat)
    if kind == "rows":
        n = draw(st.sampled_from([0, 1, 2, 3, len(array) - 1]))
        # The same row again and again, or the first few.
        return np.repeat(array[:1], n, axis=0) if draw(st.booleans()) else array[:n]
    if array.dtype.kind != "f":
        return array[::-1].copy()
    if kind == "scale":
        with np.errstate(all="ignore"):
            return array * draw(st.sampled_from(NUMBERS))
    changed = array.copy()
    cells = draw(st.lists(st.integers(0, array.size - 1), min_size=1, max_size=3))
    changed.flat[cells] = draw(st.sampled_from(NUMBERS))
    return changed


@st.composite
def calls(draw: st.DrawFn, learner: Learner, names: list[str]) -> Call:
    """Return a call with something out of the ordinary."""
    trainings = ["settings", "data"] if learner.data() else ["settings"]
    questions = ["question"] * (learner.questions_per_training * len(trainings))
    kind = draw(st.sampled_from([*trainings, *questions]))
    if kind == "settings":
        changed = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        return Call({name: draw(st.sampled_from(SETTINGS)) for name in changed})
    arrays = list(learner.data() if kind == "data" else learner.questions())
    at = draw(st.integers(0, len(arrays) - 1))
    arrays[at] = draw(altered(np.asarray(arrays[at])))
    return Call({}, tuple(arrays)) if kind == "data" else Call({}, None, tuple(arrays))


def judge(learner: Learner, fitted: Any, call: Call) -> Outcome:
    """Make a call, and say what became of it."""
    before = megabytes()
    try:
        with warnings.catch_warnings(), time_limit(MOST_SECONDS):
            warnings.simplefilter("ignore")
            if call.question is None:
                outcome = _train_and_ask(learner, call)
            else:
                outcome = _answers(learner, fitted, call.question)
    except REFUSED:
        return Outcome("refused")
    except TimeoutError:
        return Outcome("too slow", True)
    except Exception as error:  # whatever a call can raise is to be seen
        return Outcome("undocumented error", True, where_raised(error))
    if megabytes() - before > MOST_MEGABYTES:
        return Outcome("too large", True)
    return outcome


def _train_and_ask(learner: Learner, call: Call) -> Outcome:
    """Train a new learner, which may refuse, and ask it an ordinary question."""
    model = learner.make(**call.settings)
    known = dict(vars(model))
    try:
        learner.train(model, *(call.data or learner.data()))
    except REFUSED:
        if vars(model).keys() != known.keys():
            return Outcome("a failed training left traces", True)
        raise
    try:
        outcome = _answers(learner, model, learner.questions())
    except REFUSED as error:
        if call.data is not None:  # from which the samples of the question may be too far
            raise
        return Outcome("an ordinary question is refused", True, where_raised(error))
    return outcome if outcome.fault else _information(model)


def _answers(learner: Learner, model: Any, question: tuple[Any, ...]) -> Outcome:
    """Ask a fitted learner, and check what it says."""
    answer = np.asarray(learner.ask(model, *question), float)
    if not np.isfinite(answer).all():
        return Outcome("answers are not finite", True)
    shares = learner.responsibilities(model, *question)
    if not np.allclose(shares.sum(axis=-1), 1.0, atol=1e-4):
        return Outcome("responsibilities do not sum to one", True)
    return Outcome("answered")


def _information(model: Any) -> Outcome:
    """Check that the bits of a trained learner are possible."""
    told = model.information_
    most = math.log2(len(told.responsibility)) + 1e-4
    numbers = [told.selector, told.experts, *told.per_expert]
    if not (np.isfinite(numbers).all() and min(numbers) >= 0.0 and told.selector <= most):
        return Outcome("information out of bounds", True, repr(told))
    return Outcome("answered")


def _estimator(name: str, **settings: Any) -> Callable[..., Any]:
    def make(**changed: Any) -> Any:
        import pinfactory

        return getattr(pinfactory, name)(
            **({"n_experts": 2, "random_state": 0} | settings | changed)
        )

    return make


def _labelled() -> tuple[np.ndarray, np.ndarray]:
    x, y = table()
    return x, (y > 0).astype(int)


def _episode() -> tuple[np.ndarray, np.ndarray]:
    x = np.linspace(-1.0, 1.0, 5)[:, None]
    return x, np.sin(x[:, 0])


def _train_on_tasks(model: Any, x: Any, labels: Any) -> Any:
    from pinfactory.meta.tasks import ArrayTasks

    return model.fit(ArrayTasks(x, labels, ways=2, shots=2, queries=2))


def _train_on_sinusoids(model: Any) -> Any:
    from pinfactory.meta.tasks import Sinusoids

    return model.fit(Sinusoids(shots=3, queries=3))


def _task_data() -> tuple[np.ndarray, np.ndarray]:
    tasks = image_tasks(4)
    x = np.asarray(tasks.x, float).reshape(120, -1)[:, :3]
    return x, np.repeat(np.arange(12), 10)


def _agent(**changed: Any) -> Any:
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.envs import Pendulum

    small = {"n_experts": 2, "n_envs": 2, "n_steps": 8, "batch_size": 16, "n_epochs": 1}
    return SpecialistAgent(Pendulum(), **(small | {"max_episode_steps": 16} | changed))


def _meta_agent(**changed: Any) -> Any:
    from pinfactory.rl.meta import MetaSpecialistAgent, pendulum_tasks

    small = {"n_experts": 2, "n_tasks": 2, "n_steps": 8, "selector_units": 4}
    small |= {"expert_hidden": (4,), "critic_hidden": (4,)}
    return MetaSpecialistAgent(**({"family": pendulum_tasks()} | small | changed))


def _ask_adapted(model: Any, x: Any) -> np.ndarray:
    return model.adapt(model.family.env).predict(x, deterministic=True)[0]


def _predict(model: Any, x: Any) -> np.ndarray:
    return model.predict(x)


def _adapted(model: Any, x: Any, y: Any) -> np.ndarray:
    return model.adapt(x, y).predict(x)


_quick = {"expert_hidden": (4,), "selector_hidden": (4,), "max_iter": 2, "batch_size": 2}
LEARNERS: dict[str, Learner] = {
    "SpecialistClassifier": Learner(
        _estimator("SpecialistClassifier", max_iter=20),
        lambda model, x, y: model.fit(x, y),
        _labelled,
        lambda model, x: model.predict_proba(x),
        lambda: (table()[0][:8],),
    ),
    "SpecialistRegressor": Learner(
        _estimator("SpecialistRegressor", max_iter=20),
        lambda model, x, y: model.fit(x, y),
        table,
        _predict,
        lambda: (table()[0][:8],),
    ),
    "SpecialistMixture": Learner(
        _estimator("SpecialistMixture"),
        lambda model, x, w: model.fit(x, sample_weight=w),
        lambda: (table()[0], np.ones(60)),
        lambda model, x: model.score_samples(x),
        lambda: (table()[0][:8],),
    ),
    "MetaSpecialistRegressor": Learner(
        _estimator("MetaSpecialistRegressor", **_quick),
        _train_on_sinusoids,
        tuple,
        _adapted,
        _episode,
    ),
    "MetaSpecialistClassifier": Learner(
        _estimator("MetaSpecialistClassifier", **_quick),
        _train_on_tasks,
        _task_data,
        lambda model, x, y: model.adapt(x, y).predict_proba(x),
        lambda: (_task_data()[0][5:15], np.repeat([0, 1], 5)),
    ),
    "SpecialistAgent": Learner(
        _agent,
        lambda model: model.learn(32),
        tuple,
        lambda model, x: model.predict(x, deterministic=True)[0],
        lambda: (np.zeros((4, 3)),),
        questions_per_training=49,
    ),
    "MetaSpecialistAgent": Learner(
        _meta_agent,
        lambda model: model.learn(1),
        tuple,
        _ask_adapted,
        lambda: (np.zeros((4, 3)),),
        lambda model, x: model.adapt(model.family.env).responsibilities_,
        questions_per_training=49,
    ),
}


@cache
def _fitted(name: str) -> Any:
    """Return the learner that is asked, trained on ordinary data."""
    learner = LEARNERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = learner.make()
        learner.train(fitted, *learner.data())
    return fitted


def fuzz(name: str, n: int, seed: int = 0) -> tuple[Counter[str], list[str], int]:
    """Make n calls; return how they ended, what to know of faults, and how many were trainings."""
    learner, fitted = LEARNERS[name], _fitted(name)
    before = _answers(learner, fitted, learner.questions())
    if before.name != "answered":
        raise RuntimeError(f"{name}: an ordinary call is not answered but {before}")
    counts: Counter[str] = Counter()
    faults: list[str] = []
    trainings: list[bool] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        calls(learner, sorted(set(fitted.get_params()) - {"tensorboard_log", "verbose"}))
    )
    def every(call: Call) -> None:
        outcome = judge(learner, fitted, call)
        counts[outcome.name] += 1
        trainings.append(call.question is None)
        if outcome.fault:
            faults.append(f"{name} {outcome.name} {outcome.detail}: {call!r:.400}")

    every()
    return counts, faults, sum(trainings)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("learners", nargs="*", default=list(LEARNERS))
    parser.add_argument("-n", type=int, default=300, help="calls of each learner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="folder for the counts as a result")
    parser.add_argument("--more", action="store_true", help="go on with the counts in --record")
    args = parser.parse_args()
    n_faults = 0
    for name in args.learners:
        counts: Counter[str] = Counter(tried=0, trainings=0, refused=0, answered=0, faults=0)
        if args.more:
            counts.update(recorded(args.record, TRIAL, name))
        for first in range(BATCH * round(counts["tried"] / BATCH), args.n, BATCH):
            found, faults, trainings = fuzz(
                name, min(BATCH, args.n - first), args.seed + first // BATCH
            )
            sound = {outcome: found[outcome] for outcome in ("refused", "answered")}
            tried = {"tried": found.total(), "trainings": trainings, "faults": len(faults)}
            counts.update(sound | tried)
            print(*(f"  {fault}" for fault in faults), sep="\n", end="\n" if faults else "")
            print(f"{name}: {dict(counts)}, peak {megabytes()} MB", flush=True)
            if args.record:
                record(args.record, TRIAL, name, args.seed, counts)
        n_faults += counts["faults"]
    return int(n_faults > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
