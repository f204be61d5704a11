"""How a selector divides the sine curves, and what the division follows."""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Float

from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids
from pinfactory.rl.meta.evaluate import information_about

# Neighbouring points of the plane that stand for one curve, along each side.
NEIGHBOURS = 5


def divide(
    model: MetaSpecialistRegressor, tasks: Sinusoids, resolution: int
) -> dict[str, np.ndarray]:
    """Return p(m|support) over the plane of phase and amplitude, each point seen anew."""
    phase = np.linspace(*tasks.phase, resolution, dtype=np.float32)
    amplitude = np.linspace(*tasks.amplitude, resolution, dtype=np.float32)
    drawn = tasks.draw(np.random.default_rng(0), resolution**2)
    a, b = (grid.ravel() for grid in np.meshgrid(amplitude, phase, indexing="ij"))
    episodes = jax.vmap(tasks.build)(jax.device_put(drawn._replace(amplitude=a, phase=b)))
    shares = model.responsibilities(*episodes.support)
    return {"phase": phase, "amplitude": amplitude, "responsibilities": shares}


def told_by_choice(division: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the bits that the choice of an expert tells about amplitude, phase, and both.

    In squares of 5 × 5 neighbouring points, whose curves are almost the same but are known at other
    points: a selector that decides by chance or by where the points are tells nothing (but for
    the few hundredths of a bit that 25 points have by chance).
    """
    side = len(division["phase"])
    amplitude, phase = (place.ravel() // NEIGHBOURS for place in np.indices((side, side)))
    groups = {"amplitude": amplitude, "phase": phase, "curve": amplitude * side + phase}
    shares = division["responsibilities"]
    return {name: information_about(group, shares) for name, group in groups.items()}


def fit_to_bits(bits: Float[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Return R² of a line through errors over bits, and over their logarithm."""
    known = np.maximum(bits, 1e-3)
    over = {"bits": known, "the logarithm of bits": np.log2(known)}
    return {name: float(np.corrcoef(x, errors)[0, 1] ** 2) for name, x in over.items()}
