"""A bent curve, followed by 1, 2, 4 and 8 experts that each know one straight line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.metrics import r2_score

from pinfactory import PartitionDisplay, SpecialistRegressor
from pinfactory.experiments.controls import CONTROLS, control, split_controls
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import (
    Method,
    choose_pieces,
    compare_methods,
    split_further,
)
from pinfactory.experiments.style import GREY, counted, headline, new_figure
from pinfactory.experiments.synthetic_data import COMMITTEE
from pinfactory.paper import regressor as paper_regressor

from ._pictures import draw_scores

TITLE = "Local linear regression"
PLACE = "Section 4.1, regression"
ABOUT = """
The paper names local linear regression as an application and has no figure of it. Here 1, 2, 4 and
8 linear experts share the curve y = 2 sin(x) + x/2 with noise of standard deviation 0.25. Every
expert answers with a Gaussian around its line, drawn in its colour where it is responsible. The
committee mixes them into a predictive density; its mean and a band of two standard deviations are
drawn. The best possible R² is 1 − noise variance / variance of y, and the band should contain 95 %
of held-out samples. Two lines cannot follow the curve, four can, and of eight the selector uses
about four. Controls are committees with default settings and constant experts, a linear selector or
a network as selector, mixtures without prices, and one dense network. With `--method both` the full
preset also has the paper's method after ten times its steps.
"""

_REACH = 4.5


@dataclass(frozen=True)
class Settings(Presets):
    """Samples, noise, numbers of experts, and how they learn."""

    method: Method = "ours"
    seeds: int = 10
    n_samples: int = 800
    noise: float = 0.25
    n_experts: tuple[int, ...] = (1, 2, 4, 8)
    controls: tuple[str, ...] = CONTROLS
    max_iter: int = 10_000
    n_init: int = 4
    resolution: int = 240
    longer: int = 100_000

    # Fewer seeds, and the paper's method as long as printed alone.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "max_iter": 6000, "longer": 0}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every number of experts, and for every control of the most."""
    own = without(settings, "method", "n_experts", "controls", "longer")
    ours, literal = (
        {counted(n, "expert"): partial(_fit, own, n, make) for n in settings.n_experts}
        for make in (partial(_ours, own), paper_regressor)
    )
    most = max(settings.n_experts)
    if settings.longer:
        longer = partial(_fit_longer, own, most, settings.longer)
        literal[f"{counted(most, 'expert')}, longer"] = longer
    controls = {name: partial(_fit_control, own, most, name) for name in settings.controls}
    return choose_pieces(settings.method, ours | controls, literal)


def _ours(settings: Settings, n_experts: int, *, random_state: int) -> SpecialistRegressor:
    return SpecialistRegressor(
        n_experts,
        beta_selector=5.0,
        batch_size=32,
        learning_rate=3e-3,
        max_iter=settings.max_iter,
        n_init=settings.n_init,
        random_state=random_state,
        **COMMITTEE,
    )


def curve(x: Float[np.ndarray, "n 1"]) -> Float[np.ndarray, " n"]:
    """Return the expected value of y."""
    return 2.0 * np.sin(x[:, 0]) + 0.5 * x[:, 0]


def _draw_data(
    settings: Settings, n_samples: int, seed: int
) -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, " n"]]:
    random = np.random.default_rng(seed)
    x = random.uniform(-_REACH, _REACH, (n_samples, 1))
    return x, curve(x) + settings.noise * random.normal(size=n_samples)


def _fit(
    settings: Settings, n_experts: int, make: Callable[..., SpecialistRegressor]
) -> dict[str, Any]:
    """Fit a committee for every seed; keep the answers of a middling one for the picture."""
    X_test, y_test = _draw_data(settings, 20_000, 12345)
    committees = [
        make(n_experts, random_state=seed).fit(*_draw_data(settings, settings.n_samples, seed))
        for seed in range(settings.seeds)
    ]
    coverage = []
    for committee in committees:
        mean, std = committee.predict(X_test, return_std=True)
        coverage.append(np.mean(abs(y_test - mean) < 2 * std))
    score = [committee.score(X_test, y_test) for committee in committees]
    middling = int(np.argsort(score)[len(score) // 2])
    return {
        "R²": score,
        "best R²": 1.0 - settings.noise**2 / np.var(y_test),
        "log-likelihood": [
            committee.score_samples(X_test, y_test).mean() for committee in committees
        ],
        "coverage": coverage,
        "selector_bits": [committee.information_.selector for committee in committees],
        "picture": _picture(settings, committees[middling], middling),
    }


def _fit_longer(settings: Settings, n_experts: int, steps: int) -> dict[str, Any]:
    """Fit the paper's committee with more steps for every seed."""
    test, score = _draw_data(settings, 20_000, 12345), []
    for seed in range(settings.seeds):
        committee = paper_regressor(n_experts, max_iter=steps, random_state=seed)
        score.append(committee.fit(*_draw_data(settings, settings.n_samples, seed)).score(*test))
    named = f"R² after {steps} steps, {counted(n_experts, 'expert')}"
    return {"quantity": named, "R²": score}


def _fit_control(settings: Settings, n_experts: int, name: str) -> dict[str, Any]:
    """Fit a control of so many experts for every seed."""
    X_test, y_test = _draw_data(settings, 20_000, 12345)
    score = []
    for seed in range(settings.seeds):
        model = control(name, n_experts, False, seed)
        model.fit(*_draw_data(settings, settings.n_samples, seed))
        score.append(r2_score(y_test, model.predict(X_test)))
    return {"control": name, "n_experts": n_experts, "R²": score}


def _picture(settings: Settings, committee: SpecialistRegressor, seed: int) -> dict[str, Any]:
    """Return what a picture of the committee needs."""
    x, y = _draw_data(settings, settings.n_samples, seed)
    grid = np.linspace(-_REACH, _REACH, settings.resolution)[:, None]
    mean, std = committee.predict(grid, return_std=True)
    return {
        "x": x.round(3),
        "y": y.round(3),
        "grid": grid[:, 0],
        "mean": mean,
        "std": std,
        "experts": [committee.expert_predict(grid, m) for m in range(committee.n_experts_)],
        "responsibilities": committee.responsibilities(grid).round(4),
        "owners": committee.assign(x),
        "shares": committee.responsibilities(x).mean(axis=0),
    }


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return R², log-likelihood and coverage on held-out samples, and the selector's bits."""
    results, controls = split_controls(results)
    results, further = split_further(results)
    rows = [Measure.over(piece["quantity"], piece["R²"]) for piece in further.values()]
    for label in ("R²", "log-likelihood", "coverage", "selector_bits"):
        for name, piece in results.items():
            # Within two points of what noise allows.
            wanted = name == "8 experts" and label == "R²"
            rows.append(
                Measure.over(
                    f"{_LABELS.get(label, label)}, {name}",
                    piece[label],
                    target=round(piece["best R²"] - 0.02, 4) if wanted else None,
                )
            )
    return rows + [Measure.over(f"R², control: {k}", v["R²"]) for k, v in controls.items()]


_LABELS = {"coverage": "share within two deviations", "selector_bits": "I(X;M)"}


def draw(results: Results) -> Figure:
    """Draw every committee: its experts' lines, its mean and its band; then the controls."""
    results, controls = split_controls(split_further(results)[0])
    n_columns = min(2, len(results))
    n_rows = -(-len(results) // n_columns)
    heights = [4.0 * n_rows] + [3.6] * bool(controls)
    figure = new_figure(6.6 * n_columns, sum(heights))
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    above = parts[0]
    panels = above.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (name, piece) in zip(panels, results.items(), strict=False):
        picture = {key: np.asarray(value) for key, value in piece["picture"].items()}
        PartitionDisplay(
            grid=[picture["grid"]],
            responsibilities=picture["responsibilities"],
            curves={key: picture[key] for key in ("mean", "std", "experts")},
            points=picture["x"],
            y=picture["y"],
            owners=picture["owners"],
            shares=picture["shares"],
            names=["x"],
            classes=None,
            note="",
        ).plot(ax=axes)
        legend = axes.get_legend()
        assert legend is not None
        legend.remove()
        note = f"R² {np.mean(piece['R²']):.3f} of at most {piece['best R²']:.3f}"
        headline(axes, name, f"{note}; selector {np.mean(piece['selector_bits']):.2f} bits")
        axes.set_ylabel("y")
    for spare in panels[len(results) :]:
        spare.set_axis_off()
    above.supxlabel(
        "lines: experts, strong where they are responsible · dashed: the committee's mean · "
        "grey: two deviations",
        fontsize=10,
        color=GREY,
    )
    if controls:
        most = next(iter(controls.values()))["n_experts"]
        scores = {"ours": results[counted(most, "expert")]["R²"]}
        axes = parts[1].subplots()
        draw_scores(axes, "ours", scores | {name: p["R²"] for name, p in controls.items()})
        axes.set_xlabel("R² (held out)")
        headline(axes, f"controls, {counted(most, 'expert')}")
    return figure
