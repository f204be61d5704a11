"""From what a user calls an environment to a place where an agent can act and learn."""

from collections.abc import Callable
from functools import partial
from typing import Any

from . import envs
from ._native import Native

# Gymnasium's environments that ours are equal to, number by number.
EQUAL = {
    "InvertedDoublePendulum-v5": envs.DoublePendulum,
    "Pendulum-v1": envs.Pendulum,
    "CartPole-v1": envs.CartPole,
}
OURS = {
    f"pinfactory/{env.__name__}-v0": env
    for env in (*EQUAL.values(), envs.CartPoleSwingUp, envs.DoublePendulumSwingUp)
}


def find_place(env: Any, params: Any, n_envs: int, longest: int | None = None) -> Any:
    """Return a `Native` place for environments written in JAX, a `Host` for all others.

    Parameters
    ----------
    env
        An environment of `pinfactory.rl.envs` or its class; the id of a Gymnasium environment; a
        Gymnasium environment, its class or a function that makes one; or a vector environment.
    params
        Parameters of the bodies, for environments written in JAX.
    n_envs
        How many to train in, where that is free to choose.
    longest
        Steps after which an episode of training is truncated, if its own limit is not lower.
    """
    known: dict[str, Callable[[], envs.Env]] = {**EQUAL, **OURS}
    if isinstance(env, str) and env in known:
        env = known[env]()
    if isinstance(env, type) and issubclass(env, envs.Env):
        make: Callable[[], envs.Env] = env
        env = make()
    if isinstance(env, envs.Env):
        return Native(env, params, n_envs, longest)
    if params is not None:
        raise ValueError(
            "`params` must be None for a Gymnasium environment, which takes them when it is made; "
            f"got {params!r}."
        )
    import gymnasium
    from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
    from gymnasium.wrappers import TimeLimit

    from ._host import Host

    def vector(make: Any, n: int) -> VectorEnv:
        return SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP)

    if isinstance(env, VectorEnv | gymnasium.Env):
        if longest is not None:
            raise ValueError(
                "`max_episode_steps` must be None for an environment that was made already, but "
                f"got {longest}; pass a function that makes one."
            )
        only = env if isinstance(env, VectorEnv) else vector(lambda: env, 1)
        return Host(lambda n: only, only)
    if isinstance(env, str):
        gymnasium.spec(env)  # an unknown id fails here, by name
        env = partial(gymnasium.make, env)
    if callable(env):
        limited = env if longest is None else lambda: TimeLimit(env(), longest)
        return Host(partial(vector, env), vector(limited, n_envs))
    raise ValueError(
        "`env` must be an environment of pinfactory.rl.envs, the id of a Gymnasium environment, or "
        f"a Gymnasium environment, class or vector environment, but got {env!r}."
    )
