"""Networks that read a sequence: independently recurrent units and gated ones."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from .networks import Network, draw_uniform, linear, numpy_generator, relu, reserve


class IndRNN(eqx.Module):
    """Independently recurrent units (Li et al. 2018): h ← relu(W x + u ∘ h + b).

    Each unit remembers itself alone. The recurrent weights u are drawn from [0, 1], which neither
    forgets nor explodes over the few steps that a selector reads.
    """

    inputs: Network
    memory: Float[Array, " units"]

    @classmethod
    def create(cls, inputs: int, units: int, *, key: Key[Array, ""]) -> "IndRNN":
        """Draw the weights with NumPy."""
        reserve(units)
        memory = jax.device_put(numpy_generator(key).uniform(0.0, 1.0, units).astype(np.float32))
        return cls(linear(inputs, units, key=jax.random.fold_in(key, 1)), memory)

    def __call__(
        self, x: Float[Array, " inputs"], hidden: Float[Array, " units"]
    ) -> Float[Array, " units"]:
        """Return the next hidden state."""
        return relu(self.inputs(x) + self.memory * hidden)


class GRU(eqx.Module):
    """Gated recurrent units (Cho et al. 2014), Equinox's cell with weights drawn by NumPy."""

    cell: eqx.nn.GRUCell

    @classmethod
    def create(cls, inputs: int, units: int, *, key: Key[Array, ""]) -> "GRU":
        """Draw the weights uniformly within ±1/√units."""
        shell = eqx.filter_eval_shape(eqx.nn.GRUCell, inputs, units, key=key)
        reserve(3 * units, inputs + units + 1)
        return cls(draw_uniform(shell, 1.0 / np.sqrt(units), key=key))

    def __call__(
        self, x: Float[Array, " inputs"], hidden: Float[Array, " units"]
    ) -> Float[Array, " units"]:
        """Return the next hidden state."""
        return self.cell(x, hidden)


class SequenceNetwork(eqx.Module):
    """A recurrent cell that reads a whole sequence, and a linear map of what it remembers.

    Written for one sequence; the caller vmaps over a batch.
    """

    cell: IndRNN | GRU
    readout: Network
    units: int = eqx.field(static=True)

    @classmethod
    def create(
        cls, cell: str, inputs: int, outputs: int, units: int, *, key: Key[Array, ""]
    ) -> "SequenceNetwork":
        """Build a network from the kind of its cell (indrnn or gru) and its sizes."""
        kinds: dict[str, type[IndRNN] | type[GRU]] = {"indrnn": IndRNN, "gru": GRU}
        if cell not in kinds:
            raise ValueError(f"`cell` must be 'indrnn' or 'gru', but got {cell!r}.")
        return cls(
            kinds[cell].create(inputs, units, key=jax.random.fold_in(key, 0)),
            linear(units, outputs, key=jax.random.fold_in(key, 1)),
            units,
        )

    def __call__(
        self, xs: Float[Array, "steps inputs"], *, key: PyTree = None
    ) -> Float[Array, " outputs"]:
        """Read all steps, then answer."""
        return self.readout(self.remember(xs))

    def remember(self, xs: Float[Array, "steps inputs"]) -> Float[Array, " units"]:
        """Return what is remembered after all steps."""
        start = jnp.zeros(self.units, xs.dtype)
        hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), start, xs)
        return hidden
