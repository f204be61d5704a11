"""A cart that carries a double pendulum: the body and its motion."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ._env import parameter
from ._rail import Accelerate, Angles, Motion, Rail, Scalar, angles, rail_force, simulate


def capsule(length: float, radius: float, density: float = 1000.0) -> tuple[float, float]:
    """Return the mass of a capsule and its moment of inertia across its axis.

    `length` is that of the cylinder between the two half balls.
    """
    cylinder = density * math.pi * radius**2 * length
    balls = density * math.pi * radius**3 * 4.0 / 3.0
    inertia = cylinder * (3.0 * radius**2 + length**2) / 12.0 + balls * (
        0.4 * radius**2 + 0.25 * length**2 + 0.375 * length * radius
    )
    return cylinder + balls, inertia


_CART = capsule(length=0.2, radius=0.1)
_POLE = capsule(length=0.6, radius=0.045)


class DoublePendulumBody(Rail):
    """The constants of the motion; the defaults are those of Gymnasium's MuJoCo model.

    Parameters
    ----------
    cart_mass
        In kilograms.
    pole_mass, pole_inertia, pole_length, pole_center
        Of the lower and the upper pole: mass, moment of inertia about its centre of mass, distance
        between its ends, distance of its centre of mass from its hinge.
    damping
        Of the slider and the two hinges, per velocity.
    gravity
        Along the rail and upwards, in m/s².
    gear
        Force in newtons for an action of 1, the motor's gain.
    control_sign
        −1 for a motor that was wired the wrong way round.
    applied_force
        Constant force on the slider and torques on the hinges, MuJoCo's `qfrc_applied`.
    timestep
        Of one Runge–Kutta step, in seconds.
    """

    cart_mass: Float[Array, "..."] = parameter(_CART[0])
    pole_mass: Float[Array, "... 2"] = parameter([_POLE[0], _POLE[0]])
    pole_inertia: Float[Array, "... 2"] = parameter([_POLE[1], _POLE[1]])
    pole_length: Float[Array, "... 2"] = parameter([0.6, 0.6])
    pole_center: Float[Array, "... 2"] = parameter([0.3, 0.3])
    damping: Float[Array, "... 3"] = parameter([0.05, 0.05, 0.05])
    gravity: Float[Array, "... 2"] = parameter([1e-5, -9.81])
    gear: Float[Array, "..."] = parameter(500.0)
    control_sign: Float[Array, "..."] = parameter(1.0)
    applied_force: Float[Array, "... 3"] = parameter([0.0, 0.0, 0.0])
    timestep: Float[Array, "..."] = parameter(0.01)


def tip(position: Float[Array, " 3"], body: DoublePendulumBody) -> tuple[Scalar, Scalar]:
    """Return where the upper end of the upper pole is: along the rail, and above it."""
    lower = position[1]
    upper = lower + position[2]
    length = body.pole_length
    return (
        position[0] + length[0] * jnp.sin(lower) + length[1] * jnp.sin(upper),
        length[0] * jnp.cos(lower) + length[1] * jnp.cos(upper),
    )


def move(
    position: Float[Array, " 3"],
    velocity: Float[Array, " 3"],
    control: Scalar,
    body: DoublePendulumBody,
    frames: int,
) -> Motion:
    """Simulate `frames` time steps under a constant control in [−1, 1].

    Coordinates are those of MuJoCo: the cart's position, the lower pole's angle from upright and
    the upper pole's angle from the lower one. With zero `frames` nothing moves and only the force
    of the end stop is found, as by MuJoCo's `mj_forward`.
    """
    # Inside, both poles are measured from upright: the mass matrix is simpler, and the Runge–Kutta
    # method does not care about a linear change of coordinates.
    accelerate = _equations_of_motion(control, body)
    start, speed = _from_upright(position), _from_upright(velocity)
    if frames == 0:
        _, force = accelerate(start, speed, angles(start))
        return Motion(position, velocity, position, force)
    motion = simulate(accelerate, start, speed, body.timestep, frames)
    return Motion(
        _from_lower_pole(motion.position),
        _from_lower_pole(motion.velocity),
        _from_lower_pole(motion.stage_position),
        motion.stage_force,
    )


def _from_upright(coordinates: Float[Array, " 3"]) -> Float[Array, " 3"]:
    return coordinates.at[2].add(coordinates[1])


def _from_lower_pole(coordinates: Float[Array, " 3"]) -> Float[Array, " 3"]:
    return coordinates.at[2].add(-coordinates[1])


class _Inertia(NamedTuple):
    """What the mass matrix M(q) is made of, which is symmetric.

    Its row of the cart is (m_xx, lever_1 cos q₁, lever_2 cos q₂), and the poles have m_11, m_22 and
    coupling · cos(q₁ − q₂).
    """

    m_xx: Scalar
    m_11: Scalar
    m_22: Scalar
    lever_1: Scalar
    lever_2: Scalar
    coupling: Scalar

    @classmethod
    def of(cls, body: DoublePendulumBody) -> "_Inertia":
        (m1, m2), (c1, c2) = _pair(body.pole_mass), _pair(body.pole_center)
        (l1, _), (i1, i2) = _pair(body.pole_length), _pair(body.pole_inertia)
        return cls(
            m_xx=body.cart_mass + m1 + m2,
            m_11=i1 + m1 * c1**2 + m2 * l1**2,
            m_22=i2 + m2 * c2**2,
            lever_1=m1 * c1 + m2 * l1,
            lever_2=m2 * c2,
            coupling=m2 * l1 * c2,
        )

    def cofactors(
        self, x1: Scalar, x2: Scalar, m_12: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        """Return the cofactors of the cart's row, and one by the determinant."""
        xx = self.m_11 * self.m_22 - m_12**2
        x_1 = x2 * m_12 - x1 * self.m_22
        x_2 = x1 * m_12 - x2 * self.m_11
        return xx, x_1, x_2, 1.0 / (self.m_xx * xx + x1 * x_1 + x2 * x_2)


def _equations_of_motion(control: Scalar, body: DoublePendulumBody) -> Accelerate:
    """Return the map from (position, velocity) to (acceleration, force of the end stop).

    M(q) a = forces − bias(q, v), solved with the cofactors of the symmetric 3 × 3 mass matrix.
    """
    inertia = _Inertia.of(body)
    m_xx, m_11, m_22, lever_1, lever_2, coupling = inertia
    gravity_x, gravity_z = _pair(body.gravity)
    damp_x, damp_1, damp_2 = (body.damping[i] for i in range(3))
    push_x, push_1, push_2 = (body.applied_force[i] for i in range(3))
    drive = body.control_sign * body.gear * control + push_x + m_xx * gravity_x
    upright_xx, _, _, upright_scale = inertia.cofactors(lever_1, lever_2, coupling)
    inverse_inertia_at_rest = upright_xx * upright_scale

    def accelerate(
        position: Float[Array, " 3"], velocity: Float[Array, " 3"], angles: Angles
    ) -> tuple[Float[Array, " 3"], Scalar]:
        speed, spin_1, spin_2 = velocity[0], velocity[1], velocity[2]
        (sin_1, sin_2), (cos_1, cos_2) = _pair(angles.sines), _pair(angles.cosines)
        cos_12 = cos_1 * cos_2 + sin_1 * sin_2
        sin_12 = sin_1 * cos_2 - cos_1 * sin_2

        x1, x2, m_12 = lever_1 * cos_1, lever_2 * cos_2, coupling * cos_12
        xx, x_1, x_2, scale = inertia.cofactors(x1, x2, m_12)
        c_11 = m_xx * m_22 - x2**2
        c_12 = x1 * x2 - m_xx * m_12
        c_22 = m_xx * m_11 - x1**2

        # A torque on the upper hinge turns the upper pole and turns the lower one back.
        hinge_2 = push_2 - damp_2 * (spin_2 - spin_1)
        hinge_1 = push_1 - damp_1 * spin_1
        force_x = drive - damp_x * speed + lever_1 * sin_1 * spin_1**2 + lever_2 * sin_2 * spin_2**2
        force_1 = (
            hinge_1
            - hinge_2
            + lever_1 * (gravity_x * cos_1 - gravity_z * sin_1)
            - coupling * sin_12 * spin_2**2
        )
        force_2 = (
            hinge_2
            + lever_2 * (gravity_x * cos_2 - gravity_z * sin_2)
            + coupling * sin_12 * spin_1**2
        )

        free = (xx * force_x + x_1 * force_1 + x_2 * force_2) * scale
        stop = rail_force(body, position[0], speed, free, xx * scale, inverse_inertia_at_rest)
        acceleration = [
            free + xx * scale * stop,
            (x_1 * (force_x + stop) + c_11 * force_1 + c_12 * force_2) * scale,
            (x_2 * (force_x + stop) + c_12 * force_1 + c_22 * force_2) * scale,
        ]
        return jnp.stack(acceleration), stop

    return accelerate


def _pair(values: Float[Array, " 2"]) -> tuple[Scalar, Scalar]:
    return values[0], values[1]
