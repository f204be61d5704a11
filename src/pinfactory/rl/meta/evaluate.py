"""Whole episodes in new tasks: probe, select, act; and what the choices say about the tasks."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory import settings as check
from pinfactory.core.compiling import compiled_fully
from pinfactory.core.hierarchy import repeat_answers, take_expert
from pinfactory.core.information import Information, StageMeter
from pinfactory.rl.envs import Env
from pinfactory.rl.evaluate import (
    EpisodeResults,
    EpisodeState,
    Evaluation,
    episode_limit,
    run_episodes,
)
from pinfactory.rl.rollout import uniforms

from .families import TaskFamily
from .policy import MetaPolicy


class TaskEpisodes(NamedTuple):
    """One episode in each of n tasks, the probe included; the chosen experts, and p(m|τ).

    `meter` has the information of the experts on the states they visited.
    """

    episodes: EpisodeResults
    expert: Int[Array, " n"]
    responsibilities: Float[Array, "n m"]
    meter: StageMeter


@dataclasses.dataclass(frozen=True)
class MetaEvaluation:
    """One deterministic and one stochastic episode in each of n tasks, with the same probe.

    Steps of the probe count in returns and lengths. `experts` are the most probable ones,
    `responsibilities` p(m|τ), and `tasks` what tells the tasks apart, by name.
    """

    episodes: Evaluation
    experts: np.ndarray
    responsibilities: np.ndarray
    tasks: dict[str, np.ndarray]

    @property
    def deterministic(self) -> EpisodeResults:
        """Episodes of the most probable expert and its most probable actions."""
        return self.episodes.deterministic

    @property
    def stochastic(self) -> EpisodeResults:
        """Episodes of sampled experts and actions."""
        return self.episodes.stochastic

    def information_about(self, parameter: str) -> float:
        """Return I(parameter; M) in bits: of its values if they are few, else of its quarters."""
        return information_about(group_values(self.tasks[parameter]), self.responsibilities)

    def __repr__(self) -> str:
        return f"MetaEvaluation({self.episodes!r})"


def draw_tasks(family: TaskFamily, n_tasks: int, agent_seed: int, seed: int) -> Any:
    """Draw new tasks; agents of different seeds get different ones."""
    random = np.random.default_rng([agent_seed, 1, seed])
    return family.draw(random, check.integer("n_tasks", n_tasks, 1))


def evaluate_tasks(
    policy: MetaPolicy, family: TaskFamily, params: Any, deterministic: bool, seed: int
) -> TaskEpisodes:
    """Play one episode in each of the tasks."""
    env, limit = family.env, episode_limit(family.env)
    key, sure = jax.random.key(seed), jnp.asarray(deterministic)
    return _play(env, key, params, policy, sure, limit)


@compiled_fully
def _play(
    env: Env,
    key: Key[Array, ""],
    tasks: PyTree,
    policy: MetaPolicy,
    deterministic: Bool[Array, ""],
    max_steps: Int[Array, ""],
) -> TaskEpisodes:
    """Play one episode in each task, all at the same time, for at most `max_steps` steps."""
    probe_key, expert_key, key = jax.random.split(key, 3)
    probed = policy.run_probe(env, probe_key, tasks)
    selection = policy.select(probed.transitions)
    best = jnp.argmax(selection.log_probs, axis=-1)
    expert = jnp.where(deterministic, best, selection.sample(expert_key)).astype(jnp.int32)
    experts = take_expert(policy.hierarchy.experts, expert)
    n, capacity = selection.log_probs.shape
    acts = jax.nn.one_hot(expert, capacity)

    def act(key: Key[Array, ""], now: EpisodeState) -> tuple[Array, StageMeter]:
        noise = uniforms(key, (n, policy.actions.n_noise))
        sample = policy.act(experts, now.observation, noise, deterministic)
        answers = repeat_answers(sample.answer, capacity)
        meter = now.policy_state.update(answers, acts * ~now.over[:, None])
        return policy.actions.to_env(sample.action), meter

    trajectory, environments = probed.trajectory, probed.environments
    ended = jnp.cumsum(trajectory.done, axis=0)
    counts = ended - trajectory.done == 0
    start = EpisodeState(
        jnp.asarray(policy.probe.length),
        environments.states,
        environments.observation,
        ended[-1] > 0,
        jnp.sum(counts * trajectory.reward, axis=0),
        jnp.sum(counts, axis=0).astype(jnp.int32),
        StageMeter.start(policy.priors.stages[1].family),
    )
    end = run_episodes(env, key, tasks, start, act, max_steps)
    episodes = EpisodeResults(end.total, end.length)
    return TaskEpisodes(episodes, expert, selection.probs, end.policy_state)


def evaluation(
    policy: MetaPolicy, family: TaskFamily, params: Any, n_experts: int, seed: int
) -> MetaEvaluation:
    """Play deterministic and stochastic episodes in the tasks."""
    sure, drawn = (
        evaluate_tasks(policy, family, params, deterministic, seed)
        for deterministic in (True, False)
    )
    return MetaEvaluation(
        Evaluation(sure.episodes.on_host(), drawn.episodes.on_host()),
        np.asarray(sure.expert),
        np.asarray(sure.responsibilities)[:, :n_experts],
        family.describe(params),
    )


def measure_information(
    policy: MetaPolicy, family: TaskFamily, params: Any, n_experts: int, seed: int
) -> Information:
    """Measure the bits of selector and experts in stochastic episodes of the tasks.

    p(m) is the share of the tasks that an expert handles, and weights the bits of the experts.
    """
    played = evaluate_tasks(policy, family, params, False, seed)
    responsibilities = np.asarray(played.responsibilities)[:, :n_experts]
    shares = responsibilities.mean(axis=0)
    acted = np.asarray(played.meter.share)[:n_experts] > 0
    per_expert = np.where(acted, np.asarray(played.meter.bits, float)[:n_experts], 0.0)
    return Information(
        selectors=(max(0.0, float(entropy(shares) - entropy(responsibilities).mean())),),
        experts=float(np.sum(shares * per_expert)),
        overall=float("nan"),
        per_expert=per_expert,
        responsibility=shares,
        effective_experts=float(2.0 ** entropy(shares)),
        about={
            name: information_about(group_values(values), responsibilities)
            for name, values in family.describe(params).items()
        },
    )


def entropy(probabilities: Float[np.ndarray, "... m"]) -> Float[np.ndarray, "..."]:
    """Return the entropy in bits; zero times log zero is zero."""
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return np.asarray(-np.sum(probabilities * np.log2(safe), axis=-1))


def group_values(values: Float[np.ndarray, " n"], n_groups: int = 4) -> Int[np.ndarray, " n"]:
    """Sort tasks by a parameter: its values where they are few, else groups of equal size."""
    distinct, index = np.unique(values, return_inverse=True)
    if len(distinct) <= n_groups:
        return index
    return np.argsort(np.argsort(values, kind="stable")) * n_groups // len(values)


def information_about(
    group: Int[np.ndarray, " n"], responsibilities: Float[np.ndarray, "n m"]
) -> float:
    """Return I(group; M) = H(M) − H(M|group) in bits."""
    rest = 0.0
    for g in np.unique(group):
        mine = responsibilities[group == g]
        rest += len(mine) / len(group) * float(entropy(mine.mean(axis=0)))
    return max(0.0, float(entropy(responsibilities.mean(axis=0))) - rest)
