"""Every benchmark runs from its pieces to its picture, with the smallest settings there are."""

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from matplotlib.figure import Figure

from pinfactory.experiments import discover
from pinfactory.experiments.benchmarks._peers import missing_peers
from pinfactory.experiments.charts import draw_figure
from pinfactory.sweep.store import encode

# EBM and APLR take long even on small tables; what is not installed is left out.
_QUICK_RULES = tuple(name for name in ("8 linear experts", "Cubist") if not missing_peers([name]))
SMALLEST = {
    "chunked_fits": {"seeds": 1, "rows": 20_000},
    "cluster_simulation": {"seeds": 1, "measured_tasks": 10, "measured_rows": 3000},
    "compile_time": {"seeds": 1},
    "controls": {
        "seeds": 1,
        "data": ("circles", "Hitters"),
        "methods": ("linear experts", "load-balanced mixture", "one line"),
    },
    "fit_times": {
        "seeds": 1,
        "kinds": ("8 lines, 16,000 × 26", "first answer of a process"),
        "share": 0.02,
    },
    "density_peers": {"seeds": 1, "sets": ("iris",), "n_folds": 2},
    "density_speed": {"seeds": 1, "rows": 3000, "repeats": 1},
    "env_steps": {"seeds": 1, "n_envs": 2, "our_steps": 20, "their_steps": 20},
    "file_to_report": {"tables": ("HealthInsurance",)},
    "fit_speed": {"seeds": 1, "steps": 300, "loop_steps": 5},
    "large_tables": {"seeds": 1, "rows": (3000,), "n_experts": (2,)},
    "maml_speed": {"seeds": 1, "steps": 500, "loop_steps": 1, "n_experts": (2,)},
    "many_experts": {"seeds": 1, "experts": (2,), "asked": 1000},
    "meta_rl_doublings": {
        "seeds": 1,
        "n_experts": (2, 4),
        "splits": ("split at a third",),
        "iterations": 2,
        "n_tasks": 4,
        "max_steps": 20,
        "n_judged": 4,
    },
    "meta_rl_variants": {
        "seeds": 1,
        "variants": ("GRU",),
        "families": (),
        "probe_steps": (1,),
        "iterations": 2,
        "n_tasks": 4,
        "max_steps": 20,
        "n_judged": 4,
    },
    "omniglot_speed": {"seeds": 1, "shots": (1,), "chunks": 1},
    "omniglot_baselines": {
        "baselines": ("ProtoNets, four blocks",),
        "baseline_iter": 2,
        "n_tasks": 10,
    },
    "omniglot_variants": {
        "seeds": 1,
        "n_experts": 2,
        "filters": (2,),
        "pooled_shots": 2,
        "max_iter": 10,
        "n_tasks": 10,
    },
    "omniglot_ways": {"learners": ("MAML, 5 classes",), "share": 0.001, "n_tasks": 10},
    "other_tables": {"tables": ("two_class_dat",), "methods": ("8 linear experts", "one line")},
    "raw_tables": {"seeds": 1, "tables": ("Hitters",)},
    "real_tables": {
        "seeds": 1,
        "tables": ("Hitters",),
        "methods": ("8 linear experts", "one line", "linear tree of 8 leaves"),
    },
    "rl_speed": {
        "seeds": 1,
        "turns": 1,
        "our_steps": 4096,
        "their_steps": 2048,
        "n_episodes": 4,
        "limit": 8192,
    },
    "rooflines": {"seeds": 1, "seconds": 0.02},
    "rule_peers": {"seeds": 1, "tables": ("iris", "Hitters"), "methods": _QUICK_RULES},
    "sweep_speed": {"kinds": ("committees",), "trainings": 4, "steps": 20, "tasks": 20},
    "swing_up_controls": {"seeds": 1},
    "synthetic_tasks": {"seeds": 1, "n_experts": (1,)},
}
# Pieces left out: they do what others do with learners, networks or data that take longer.
LEFT_OUT = {
    "compile_time": ("Regressor", "Meta", "Agent"),
    "density_speed": ("16 components",),
    "rooflines": ("16,000 × 26", "1,000,000 × 20", "pendulum"),
}


def test_every_benchmark_is_here():
    assert set(SMALLEST) == {x.name for x in discover() if x.kind == "benchmark"}


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_from_pieces_to_picture(name):
    module = import_module(f"pinfactory.experiments.benchmarks.{name}")
    for package in getattr(module, "REQUIRES", ()):
        pytest.importorskip(package)
    if getattr(module, "lacks", str)():
        pytest.skip(module.lacks())
    settings = module.Settings.quick(**SMALLEST[name])
    results = {
        piece: compute()
        for piece, compute in module.pieces(settings).items()
        if not any(part in piece for part in LEFT_OUT.get(name, ()))
    }
    encode(results)
    measures = module.measures(results)
    names = [measure.name for measure in measures]
    assert len(set(names)) == len(names)
    assert all(np.isfinite(measure.ours) for measure in measures)
    assert isinstance(draw_figure(module, results), Figure)


def test_peers_that_are_not_installed_are_named_with_the_command(monkeypatch):
    from pinfactory.experiments.benchmarks import _peers, real_tables, rule_peers

    real = find_spec
    hidden = ("lightgbm", "interpret")
    monkeypatch.setattr(_peers, "find_spec", lambda name: None if name in hidden else real("json"))
    assert rule_peers.skipped() == {"EBM": "pip install interpret-core"}
    assert "EBM" not in rule_peers.Settings.paper().methods
    assert real_tables.skipped() == {"LightGBM": "pip install lightgbm"}
    assert "LightGBM" not in real_tables.Settings.quick().methods


def test_doublings_are_compared_seed_by_seed():
    from pinfactory.experiments.benchmarks import meta_rl_doublings

    def agents(on_t, on_new):
        return {"experts in use": [1.0, 1.0], "return on T": on_t, "return on T′": on_new}

    measures = meta_rl_doublings.measures(
        {
            "2 experts, default settings": agents([10.0, 20.0], [1.0, 2.0]),
            "4 experts, default settings": agents([11.0, 22.0], [1.0, 1.0]),
            "4 experts, split at a third": agents([14.0, 28.0], [2.0, 4.0]),
        }
    )
    rises = {m.name: (m.ours, m.passed) for m in measures if m.name.startswith("rise of the ")}
    over = "over half as many experts, 4 experts"
    assert rises == {
        f"rise of the return on T {over}, default settings": (1.5, None),
        f"rise of the return on T′ {over}, default settings": (-0.5, False),
        f"rise of the return on T {over}, split at a third": (6.0, None),
        f"rise of the return on T′ {over}, split at a third": (1.5, True),
    }
