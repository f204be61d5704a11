"""Training tasks per second beside learn2learn's MAML (PyTorch), on one and the same core.

Both do MAML with second derivatives and one inner step on 10-shot sine curves, 64 tasks in a step
of Adam, on the same networks: one hidden layer of 40 units, and two as published. Processor time
in one run, without compilation; the median of several repeats, taken in turn.

learn2learn 0.2.0 is the last release. Its archive on PyPI holds C files that Python 3.11 cannot
compile: unpack it, delete ``learn2learn/data/*.c`` and run ``python setup.py build_ext --inplace``
with Cython below 3 installed. Importing it asks for gym and torchvision, too; MAML uses neither.
"""

import itertools
import os
import statistics
import time

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np
import torch
from learn2learn.algorithms import MAML

from pinfactory.core.training import Callback, Progress, Run
from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids

torch.set_num_threads(1)
TASKS, SHOTS, RATE, REPEATS = 64, 10, 0.01, 3
CURVES = Sinusoids(shots=SHOTS, queries=SHOTS)


def theirs(hidden: tuple[int, ...], steps: int) -> float:
    """Return the tasks per second of learn2learn's MAML."""
    widths = [1, *hidden]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    learner = MAML(torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1)), lr=RATE)
    optimiser = torch.optim.Adam(learner.parameters(), lr=1e-3)
    loss = torch.nn.MSELoss()
    random = np.random.default_rng(0)
    began = time.process_time()
    for _ in range(steps):
        drawn = CURVES.draw(random, TASKS)
        optimiser.zero_grad()
        for a, b, support, query in zip(*map(torch.from_numpy, drawn), strict=True):
            support, query = support[:, None], query[:, None]
            clone = learner.clone()
            clone.adapt(loss(clone(support), a * torch.sin(support + b)))
            (loss(clone(query), a * torch.sin(query + b)) / TASKS).backward()
        optimiser.step()
    return steps * TASKS / (time.process_time() - began)


class Clock(Callback):
    """Processor time of every chunk after the first, which compiles."""

    def start(self, run: Run, total: int) -> None:
        self.seconds: list[float] = []
        self._began = time.process_time()

    def chunk(self, progress: Progress, run: Run) -> None:
        now = time.process_time()
        self.seconds.append(now - self._began)
        self._began = now


def ours(hidden: tuple[int, ...], n_experts: int, adaptation: str, chunks: int) -> float:
    """Return the tasks per second of our learner."""
    clock = Clock()
    learner = MetaSpecialistRegressor(
        n_experts,
        adaptation=adaptation,
        inner_steps=1,
        inner_rate=RATE,
        learn_rates=False,
        expert_hidden=hidden,
        max_iter=chunks * MetaSpecialistRegressor.CHUNK,
        batch_size=TASKS,
        random_state=0,
    )
    learner.fit(CURVES, callbacks=[clock])
    return MetaSpecialistRegressor.CHUNK * TASKS / statistics.median(clock.seconds[1:])


def main() -> None:
    """Print tasks per second and ratios."""
    for hidden in ((40,), (40, 40)):
        theirs(hidden, 2)
        pairs = [(theirs(hidden, 20), ours(hidden, 1, "gradient", 7)) for _ in range(REPEATS)]
        plain, fast = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"MAML, hidden layers {hidden}")
        print(f"  learn2learn               {plain:10.0f} tasks/s")
        print(f"  ours, one expert          {fast:10.0f} tasks/s   {fast / plain:6.1f} times "
              "faster (promised: 10)")  # fmt: skip
    for adaptation in ("gradient", "last_layer"):
        for n_experts in (4, 16):
            fast = ours((40,), n_experts, adaptation, 4)
            print(f"ours, {n_experts:2} experts, {adaptation:<12}{fast:10.0f} tasks/s")


if __name__ == "__main__":
    main()
