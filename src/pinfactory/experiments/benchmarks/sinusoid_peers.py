"""Sine curves from ten points: 1 to 16 experts beside MAML, all in one run, several seeds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.style import counted
from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids

TITLE = "Sine curves compared with MAML"
ABOUT = """
All learners see the same number of training tasks (64 in each step). They are tested by the mean
squared error on the same 4,000 new curves after ten gradient steps, or after their own way of
adapting. MAML has one inner step of a fixed size, the best of three on a separate seed. So has "one
step", one expert with learned step sizes, which is closest to MAML.
"""
LOG_SCALE = ("mean squared error",)

_TASKS, _STEPS_AFTER, _TUNING_SEED = 4000, 10, 100
_NETWORKS = {"one hidden layer": (40,), "two hidden layers": (40, 40)}
_RATES = (0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Settings(Presets):
    """Points of a curve, steps, and numbers of experts."""

    seeds: int = 3
    steps: int = 3000
    shots: int = 10
    rules: tuple[str, ...] = ("last_layer", "none", "gradient")
    n_experts: tuple[int, ...] = (1, 2, 4, 8, 16)

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "steps": 1000, "n_experts": (1, 4, 16)}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every learner; seeds share its compiled program."""
    own = without(settings, "rules", "n_experts")
    maml = {f"MAML, {name}": partial(_maml, own, name) for name in _NETWORKS}
    learned = {
        f"one step, {name}": partial(
            _train, own, "gradient", 1, expert_hidden=hidden, inner_steps=1
        )
        for name, hidden in _NETWORKS.items()
    }
    ours = {
        f"{rule}, {counted(n, 'expert')}": partial(_train, own, rule, n)
        for rule in settings.rules
        for n in settings.n_experts
    }
    return maml | learned | ours


def _maml(settings: Settings, network: str) -> dict[str, Any]:
    """Choose the size of the inner step on a seed of its own, then train."""
    fixed = {"expert_hidden": _NETWORKS[network], "inner_steps": 1, "learn_rates": False}
    tuned = {
        rate: _error(settings, "gradient", 1, _TUNING_SEED, inner_rate=rate, **fixed)[0]
        for rate in _RATES
    }
    rate = min(tuned, key=lambda r: tuned[r])
    return _train(settings, "gradient", 1, inner_rate=rate, **fixed) | {"inner rate": rate}


def _train(settings: Settings, rule: str, n_experts: int, **changes: Any) -> dict[str, Any]:
    pairs = [_error(settings, rule, n_experts, s, **changes) for s in range(settings.seeds)]
    errors, bits = zip(*pairs, strict=True)
    return {"error": errors, "bits": bits}


def _error(
    settings: Settings, rule: str, n_experts: int, seed: int, **changes: Any
) -> tuple[float, float]:
    """Return the mean squared error on new curves, and I(M;X) in bits."""
    tasks = Sinusoids(shots=settings.shots)
    chosen: dict[str, Any] = {"inner_steps": 5, "max_iter": settings.steps} | changes
    model = MetaSpecialistRegressor(n_experts, adaptation=rule, random_state=seed, **chosen).fit(
        tasks
    )
    after = _STEPS_AFTER if rule == "gradient" else None
    return model.evaluate(tasks, _TASKS, inner_steps=after).mean, model.information_.selector


def measures(results: Results) -> list[Measure]:
    """Return errors and bits."""
    errors = [
        Measure.over(f"mean squared error, {name}", piece["error"], higher_is_better=False)
        for name, piece in results.items()
    ]
    bits = [
        Measure.over(f"I(M;X), {name}", piece["bits"], unit="bit")
        for name, piece in results.items()
    ]
    return errors + bits
