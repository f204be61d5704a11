"""Functions for sweeps, written down as they are computed; told to misbehave by files."""

import os
import signal
import time
from pathlib import Path


def root(n, power=0.5):
    """Return a root of n."""
    folder = Path(os.environ["TOY_FOLDER"])
    trouble = folder / f"trouble {n}"
    match trouble.read_text() if trouble.exists() else "":
        case "raise":
            raise RuntimeError("no wire left")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            trouble.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            (folder / f"began {n}").write_text(str(os.getpid()))
            while trouble.exists():
                time.sleep(0.02)
    with (folder / "computed").open("a") as log:
        log.write(f"{n}\n")
    return {"root": n**power}


def traced(x, k, kind):
    """Return k² + sin x; tell every time that JAX traces it."""
    import jax.numpy as jnp

    with (Path(os.environ["TOY_FOLDER"]) / "traced").open("a") as log:
        log.write("once\n")
    return {"y": k**2 + jnp.sin(x)} if kind == "sine" else k


def trained(beta, seed):
    """Return what a small committee has learned: a number that shows any difference in rounding."""
    from sklearn.datasets import make_circles

    from pinfactory import SpecialistClassifier

    X, y = make_circles(100, factor=0.4, noise=0.05, random_state=0)
    # Little to compile: a process of its own begins with nothing.
    simple = {"start": "random", "n_init": 1, "early_stopping": False, "max_iter": 60}
    model = SpecialistClassifier(
        3, objective="free_energy", beta_selector=beta, random_state=seed, **simple
    )
    return model.fit(X, y).predict_proba(X[:3])
