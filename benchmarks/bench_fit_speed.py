"""Time per training step beside a plain PyTorch loop of the same model, on one and the same core.

Both train 4 linear experts and the paper's selector on 1,024 × 2 samples, 10,000 steps of 32 by
Adam, with the same objective and running priors. Ratios of processor time in one run; the median
of several repeats, taken in turn.
"""

import os
import statistics
import time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import torch
from sklearn.datasets import make_circles

from pinfactory import SpecialistClassifier

torch.set_num_threads(1)
STEPS, BATCH, EXPERTS, REPEATS = 10_000, 32, 4, 3
X, Y = make_circles(1024, noise=0.1, factor=0.5, random_state=0)


def committee_seconds(n_init: int, seed: int) -> float:
    """Return the processor time of one `fit` of all restarts."""
    committee = SpecialistClassifier(
        EXPERTS, n_init=n_init, max_iter=STEPS, early_stopping=False, random_state=seed
    )
    began = time.process_time()
    committee.fit(X, Y)
    return time.process_time() - began


def torch_seconds_per_step(steps: int = 500) -> float:
    """Return the processor time of a step of the plain loop."""
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    selector = torch.nn.Sequential(
        torch.nn.Linear(2, 10), torch.nn.Tanh(),
        torch.nn.Linear(10, 10), torch.nn.Tanh(),
        torch.nn.Linear(10, EXPERTS),
    )  # fmt: skip
    experts = torch.nn.Linear(2, EXPERTS * 2)
    optimiser = torch.optim.Adam([*selector.parameters(), *experts.parameters()], lr=3e-3)
    prior_m = torch.full((EXPERTS,), 1 / EXPERTS)
    prior_y = torch.full((EXPERTS, 2), 0.5)
    began = time.process_time()
    for _ in range(steps):
        rows = torch.randint(0, len(x), (BATCH,))
        log_m = torch.log_softmax(selector(x[rows]), -1)
        log_y = torch.log_softmax(experts(x[rows]).view(BATCH, EXPERTS, 2), -1)
        p_m, p_y = log_m.exp(), log_y.exp()
        with torch.no_grad():
            prior_m = 0.99 * prior_m + 0.01 * p_m.mean(0)
            share = p_m / p_m.sum(0)
            prior_y = 0.99 * prior_y + 0.01 * (share[..., None] * p_y).sum(0)
        utility = log_y.gather(2, y[rows].view(-1, 1, 1).expand(-1, EXPERTS, 1))[..., 0]
        expert_cost = (p_y * (log_y - prior_y.log())).sum(-1)
        selector_cost = (p_m * (log_m - prior_m.log())).sum(-1)
        objective = (p_m * (utility - expert_cost / 5)).sum(-1) - selector_cost / 25
        optimiser.zero_grad()
        (-objective.mean()).backward()
        optimiser.step()
    return (time.process_time() - began) / steps


def main() -> None:
    """Print the ratios."""
    torch_seconds_per_step(100)
    first_ten = committee_seconds(10, seed=0)
    committee_seconds(1, seed=0)
    plain, one, ten = [], [], []
    for seed in range(1, 1 + REPEATS):
        plain.append(torch_seconds_per_step())
        one.append(committee_seconds(1, seed) / STEPS)
        ten.append(committee_seconds(10, seed) / STEPS / 10)
    loop, single, together = map(statistics.median, (plain, one, ten))
    print(f"PyTorch loop                        {1e6 * loop:8.1f} µs a step")
    print(f"one fit                             {1e6 * single:8.1f} µs a step   "
          f"{loop / single:6.1f} times faster (promised: 50)")  # fmt: skip
    print(f"ten restarts together               {1e6 * together:8.1f} µs a step and model   "
          f"{loop / together:6.1f} times faster (promised: 100)")  # fmt: skip
    print(f"ten restarts, compilation counted   {first_ten:8.1f} s   "
          f"{10 * STEPS * loop / first_ten:6.1f} times faster (promised: 20)")  # fmt: skip


if __name__ == "__main__":
    main()
