"""Checks of types that are made once hold for every function with the signature."""

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from type_checks import checked


def made(shift: float):
    @jaxtyped(typechecker=checked)
    def add(x: Float[Array, " n"], y: Float[Array, " n"] | None = None) -> Float[Array, ""]:
        total = x + shift if y is None else x + y + shift
        return total.sum() if shift < 10.0 else total

    return add


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_a_function_that_is_defined_again_is_checked_again(shift):
    add, x = made(shift), jnp.ones(3)
    assert float(add(x)) == 3 * (1 + shift)
    assert float(add(x, y=x)) == 3 * (2 + shift)
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        add(x, jnp.ones(4))
    with pytest.raises(TypeCheckError, match="checking the parameters"):
        add(jnp.ones((3, 3)))
    with pytest.raises(TypeCheckError, match="checking the return value"):
        made(10.0)(x)


def test_functions_of_one_name_keep_their_own_types():
    def defined(number: type):
        @jaxtyped(typechecker=checked)
        def same(x: number) -> number:
            return x

        return same

    assert defined(int)(3) == 3
    assert defined(str)("3") == "3"
    with pytest.raises(TypeCheckError):
        defined(str)(3)
