import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.callbacks import (
    Checkpoint,
    JsonLines,
    ProgressBar,
    TensorBoard,
    as_callbacks,
    fingerprint,
)
from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Budget, Constraints, Priors, Scheduled, UtilityScale
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, assemble, stack
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.training import Callback, Run, train
from pinfactory.persistence import MismatchError


class Count(eqx.Module):
    def step(self, key, state, data):
        return state + data, {"value": state, "parts": (2 * state, jnp.log(data))}


def counting(keep_best=False):
    keys = jax.random.split(jax.random.key(0), 2)
    return Run.start(keys, jnp.asarray([0.0, 10.0]), keep_best=keep_best)


def count(*callbacks, run=None, steps=6):
    run = counting() if run is None else run
    return train(Count(), run, jnp.asarray(1.0), steps=steps, chunk=2, callbacks=callbacks).run


class KilledAtFour(Callback):
    def chunk(self, progress, run):
        if progress.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines_hold_a_row_for_each_chunk(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    run = counting(keep_best=True)
    train(
        Count(),
        run,
        jnp.asarray(1.0),
        steps=5,
        chunk=2,
        evaluate=lambda state: jnp.where(state > 8, jnp.nan, state),
        callbacks=[JsonLines(path)],
    )
    first, _, last = rows(path)
    assert first["seconds"] > 0
    assert {k: v for k, v in first.items() if k != "seconds"} == {
        "step": 2,
        "value": [0.5, 10.5],
        "parts/0": [1.0, 21.0],
        "parts/1": [0.0, 0.0],
        "score": [2.0, None],
    }
    assert (last["step"], last["value"]) == (5, [4.0, 14.0])


def test_a_resumed_log_reads_as_if_nothing_had_happened(tmp_path):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    count(JsonLines(whole))
    half = count(steps=2)
    count(JsonLines(broken), steps=4)
    with broken.open("a") as file:
        file.write('{"step": 6, "val')
    count(JsonLines(broken), run=half)
    of_whole, of_broken = ([row | {"seconds": 0} for row in rows(p)] for p in (whole, broken))
    assert of_broken == of_whole


def test_no_row_of_a_log_is_lost_when_a_resumed_run_is_killed_at_once(tmp_path):
    path = tmp_path / "run.jsonl"
    half = count(JsonLines(path), steps=4)
    before = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"step": 6, "value": [1.0]}\n{"step": 8, "va')

    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, test_callbacks as t; h = t.count(steps=4); "
            "log = t.JsonLines(sys.argv[1]); log.start(h, 6); "
            "t.os.kill(t.os.getpid(), t.signal.SIGKILL)",
            str(path),
        ],
        cwd=Path(__file__).parent,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert path.read_bytes().startswith(before)
    count(JsonLines(path), run=half)
    assert [row["step"] for row in rows(path)] == [2, 4, 6]


def test_a_log_goes_on_after_the_disk_was_full(tmp_path):
    whole, path = tmp_path / "whole.jsonl", tmp_path / "run.jsonl"
    count(JsonLines(whole))
    half = count(steps=4)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (whole.stat().st_size - 20, most[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            count(JsonLines(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    count(JsonLines(path), run=half)
    of_whole, of_resumed = ([row | {"seconds": 0} for row in rows(p)] for p in (whole, path))
    assert of_resumed == of_whole


def test_tensorboard_reads_the_event_files(tmp_path):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    count(TensorBoard(tmp_path))
    for replica, start in enumerate((0.0, 10.0)):
        events = event_accumulator.EventAccumulator(str(tmp_path / f"replica_{replica}"))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {"value", "parts/0", "parts/1"}
        logged = [(event.step, event.value) for event in events.Scalars("value")]
        assert logged == [(2, start + 0.5), (4, start + 2.5), (6, start + 4.5)]


def test_points_of_a_run_that_is_killed_are_there_once_after_it_was_resumed(tmp_path):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, test_callbacks as t; "
            "t.count(t.TensorBoard(sys.argv[1]), t.KilledAtFour())",
            str(tmp_path),
        ],
        cwd=Path(__file__).parent,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL

    def steps():
        events = event_accumulator.EventAccumulator(str(tmp_path / "replica_0"))
        return [event.step for event in events.Reload().Scalars("value")]

    assert steps() == [2, 4]
    time.sleep(1.0)  # TensorBoard reads files in the order of the seconds in their names
    count(TensorBoard(tmp_path), run=count(steps=2))
    assert steps() == [2, 4, 6]


def test_a_phase_that_had_ended_leaves_the_rows_of_the_next(tmp_path, monkeypatch):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    # The seconds in the names of files.
    monkeypatch.setattr(time, "time", itertools.count(10**9).__next__)
    path = tmp_path / "run.jsonl"
    first = count(JsonLines(path), TensorBoard(tmp_path), steps=2)
    killed = count(JsonLines(path), TensorBoard(tmp_path), run=first, steps=6)
    # The same command: nothing is left to do of the first phase, and the second goes on.
    for run, steps in ((first, 2), (killed, 8)):
        count(JsonLines(path), TensorBoard(tmp_path), run=run, steps=steps)
    assert [row["step"] for row in rows(path)] == [2, 4, 6, 8]
    events = event_accumulator.EventAccumulator(str(tmp_path / "replica_0")).Reload()
    assert [event.step for event in events.Scalars("value")] == [2, 4, 6, 8]


def test_another_run_keeps_the_log_that_is_there(tmp_path):
    path = tmp_path / "run.jsonl"
    count(JsonLines(path), steps=4)
    first = path.read_bytes()
    for steps in (2, 6):
        count(JsonLines(path), steps=steps)
    assert [row["step"] for row in rows(path)] == [2, 4, 6]
    assert (tmp_path / "run.1.jsonl").read_bytes() == first
    assert [row["step"] for row in rows(tmp_path / "run.2.jsonl")] == [2]


def test_the_progress_bar_reaches_the_total_on_standard_error(capsys):
    half = count(steps=2)
    count(ProgressBar("counting"), run=half)
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting: 100%" in err
    assert "6.00/6.00" in err


def test_a_checkpoint_is_written_every_few_chunks_and_at_the_end(tmp_path):
    path = tmp_path / "checkpoints" / "run.pin"
    written = []

    class Look(Callback):
        def chunk(self, progress, run):
            if path.exists():
                written.append(int(Checkpoint.resume(path, counting()).step))

    end = count(Checkpoint(path, every=2), Look())
    assert written == [4, 4]
    assert eqx.tree_equal(Checkpoint.resume(path, counting()), end)


IDENTITY = {"seed": 0, "learning_rate": 0.003, "hidden": (4, 4), "data": fingerprint(np.arange(3))}


def test_a_checkpoint_of_the_same_run_goes_on_to_more_steps(tmp_path):
    path = tmp_path / "run.pin"
    count(Checkpoint(path, identity=IDENTITY), steps=4)
    half = Checkpoint.resume(path, counting(), IDENTITY)
    assert int(half.step) == 4
    assert eqx.tree_equal(count(run=half, steps=8), count(steps=8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "belongs to seed 0, but this run has seed 1;"),
        (
            {"learning_rate": 0.01, "seed": 2},
            "belongs to seed 0, learning_rate 0.003, but this run has seed 2, learning_rate 0.01;",
        ),
        ({"hidden": (4, 5)}, r"belongs to hidden \(4, 4\), but this run has hidden \(4, 5\);"),
        ({"data": fingerprint(np.arange(3.0))}, "belongs to data '[0-9a-f]{16}', but"),
        ({"gamma": 0.9}, "belongs to gamma None, but this run has gamma 0.9;"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path, change, message):
    path = tmp_path / "run.pin"
    count(Checkpoint(path, identity=IDENTITY), steps=4)
    with pytest.raises(MismatchError, match=message):
        Checkpoint.resume(path, counting(), IDENTITY | change)


def test_a_checkpoint_that_says_nothing_of_its_run_is_refused_where_that_matters(tmp_path):
    path = tmp_path / "run.pin"
    count(Checkpoint(path), steps=4)
    with pytest.raises(MismatchError, match="which run it belongs to"):
        Checkpoint.resume(path, counting(), IDENTITY)
    assert int(Checkpoint.resume(path, counting()).step) == 4


def test_a_fingerprint_depends_on_values_shapes_and_types():
    x = np.arange(6.0)
    others = [x + 1, x.reshape(2, 3), x.astype("f4"), x.astype(str), x.astype(object), x[:5]]
    found = {fingerprint(a) for a in (x, *others)} | {fingerprint(x, x)}
    assert len(found) == 8
    assert fingerprint(x) == fingerprint(list(x)) == fingerprint(np.repeat(x, 2)[::2])


def log_likelihood(answer, target):
    return answer.log_prob(target)


LEARNER = Learner(CommitteeLoss(log_likelihood, "sampled"), keep_average=True)
STEPS = 120


def beginning():
    """A run that uses everything that has a state: schedules, budgets, scales, sampling, best."""

    def init(key):
        hierarchy = assemble(
            key,
            lambda k: eqx.nn.Linear(2, 2, key=k),
            lambda k: FamilyExpert(eqx.nn.Linear(2, 2, key=k), Categorical.from_logits),
            2,
        )
        priors = Priors.running(hierarchy(jnp.zeros(2)), 0.9, 0.9)
        resources = (Budget(0.5), Scheduled(1.0, 10.0, 100.0, "cosine"))
        constraints = Constraints(priors, resources, UtilityScale())
        return LEARNER.init(hierarchy, constraints, learning_rate=0.01)

    keys = jax.random.split(jax.random.key(0), 2)
    return Run.start(keys, stack([init(key) for key in keys]), keep_best=True)


def learn(run, *callbacks):
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    y = (x.prod(axis=1) > 0).astype(int)
    data = Data(jnp.asarray(x), jnp.asarray(y), jnp.ones(50))
    return train(
        LEARNER,
        run,
        data,
        steps=STEPS,
        batches=Epochs(50, 16),
        chunk=15,
        # Goes up and down, so that the best state is not the last.
        evaluate=lambda state: jnp.sin(60 * state.model.selector.bias[:, 0]),
        callbacks=callbacks,
    ).run


class Killed(Callback):
    def chunk(self, progress, run):
        if progress.step == 75:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_killed_and_resumed_ends_as_one_that_was_not(tmp_path):
    path = tmp_path / "run.pin"
    script = (
        "import sys, test_callbacks as t; "
        "t.learn(t.beginning(), t.Checkpoint(sys.argv[1], every=2), t.Killed())"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=Path(__file__).parent, check=False
    )
    assert child.returncode == -signal.SIGKILL
    resumed = Checkpoint.resume(path, beginning())
    assert int(resumed.step) == 60
    end, whole = learn(resumed), learn(beginning())
    assert eqx.tree_equal(end, whole)
    assert np.all(whole.best.stale > 0)


@pytest.mark.parametrize("wrong", ["log", 3, ProgressBar, [JsonLines]])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(TypeError, match="`callbacks` must be a Callback"):
        as_callbacks(wrong)
