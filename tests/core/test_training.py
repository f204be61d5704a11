import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core import training
from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Budget, Constraints, Fixed, Priors
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import stack
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.training import Callback, Chunk, Run, TrainingInterrupted, run_chunks, train

NEVER = -1


class State(eqx.Module):
    """Three experts that follow the data, with a step at which something breaks."""

    selector: jax.Array
    experts: jax.Array
    step: jax.Array
    fault: jax.Array


class Follow(eqx.Module):
    breaks: str = eqx.field(static=True, default="nothing")

    def step(self, key, state, data):
        step = state.step + 1
        noise = jax.random.normal(key, (3, 2))
        selector, experts = state.selector * 0.9, state.experts + 0.1 * (data + noise)
        loss = jnp.sum(experts**2)
        fault = jnp.where(step == state.fault, jnp.nan, 0.0)
        if self.breaks == "expert":
            selector, experts, loss = selector + fault, experts.at[2, 1].add(fault), loss + fault
        elif self.breaks == "selector":
            selector, experts, loss = selector + fault, experts + fault, loss + fault
        elif self.breaks == "loss":
            loss = loss + fault
        return State(selector, experts, step, state.fault), {"loss": loss}


class FollowRows(Follow):
    def step(self, key, state, data):
        return super().step(key, state, data.mean(axis=0))


def begin(n_replicas=2, faults=NEVER, **kwargs):
    def init(fault):
        return State(jnp.ones(2), jnp.zeros((3, 2)), jnp.asarray(0), fault)

    faults = jnp.broadcast_to(jnp.asarray(faults), (n_replicas,))
    keys = jax.random.split(jax.random.key(0), n_replicas)
    return Run.start(keys, jax.vmap(init)(faults), **kwargs)


DATA = jnp.asarray([1.0, -1.0])


class Watch(Callback):
    def __init__(self, at=None, action=lambda: None):
        self.at, self.action, self.seen, self.finished = at, action, [], 0

    def start(self, run, total):
        self.seen.append((int(run.step), total))

    def chunk(self, progress, run):
        self.seen.append(progress.step)
        return self.action() if progress.step == self.at else None

    def finish(self):
        self.finished += 1


def interrupt():
    raise KeyboardInterrupt


def test_the_chunk_size_does_not_change_the_result():
    ends = [train(Follow(), begin(), DATA, steps=50, chunk=chunk) for chunk in (7, 50)]
    assert eqx.tree_equal(*(end.run.state for end in ends))
    assert [progress.step for progress in ends[0].history] == [7, 14, 21, 28, 35, 42, 49, 50]


def test_neither_chunks_nor_a_resume_nor_a_fault_change_the_batches():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(10, 2)), jnp.float32)
    whole = train(FollowRows(), begin(), data, steps=50, batches=Epochs(10, 3)).run
    half = train(FollowRows(), begin(), data, steps=20, chunk=7, batches=Epochs(10, 3)).run
    pieces = train(FollowRows(), half, data, steps=50, chunk=9, batches=Epochs(10, 3)).run
    assert eqx.tree_equal(whole.state, pieces.state, rtol=1e-6, atol=1e-6)
    faulty = begin(faults=[21, NEVER])
    with pytest.raises(NonFiniteError) as caught:
        train(FollowRows("loss"), faulty, data, steps=50, chunk=50, batches=Epochs(10, 3))
    kept = caught.value.run.state.experts
    np.testing.assert_allclose(kept, half.state.experts, rtol=1e-6, atol=1e-6)


def test_the_history_holds_means_over_chunks():
    fine = train(Follow(), begin(), DATA, steps=12, chunk=1).history
    coarse = train(Follow(), begin(), DATA, steps=12, chunk=8).history
    losses = np.stack([progress.info["loss"] for progress in fine])
    np.testing.assert_allclose(coarse[0].info["loss"], losses[:8].mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(coarse[1].info["loss"], losses[8:].mean(axis=0), rtol=1e-5)


def test_data_may_be_made_anew_from_the_run_before_every_chunk():
    asked = []

    def experience(run):
        asked.append(int(run.step))
        return DATA + run.step

    made = train(Follow(), begin(), experience, steps=5, chunk=2).run
    run = begin()
    for step, end in ((0, 2), (2, 4), (4, 5)):
        run = train(Follow(), run, DATA + step, steps=end).run
    assert asked == [0, 2, 4]
    assert eqx.tree_equal(made.state, run.state)


def test_data_may_be_gathered_by_the_state_before_every_chunk():
    given = []

    def gather(run):
        given.append(int(run.step))
        return jnp.full((3, 2), float(run.step))

    class Copy(eqx.Module):
        def step(self, key, state, data):
            return eqx.tree_at(lambda s: s.experts, state, data), {"loss": jnp.sum(data)}

    trained = train(Copy(), begin(), gather, steps=3, chunk=1)
    assert given == [0, 1, 2]
    np.testing.assert_array_equal(trained.run.state.experts, 2.0)
    assert [float(p.info["loss"][0]) for p in trained.history] == [0.0, 6.0, 12.0]


@pytest.mark.parametrize(
    ("breaks", "expert", "where"),
    [("expert", 2, "experts"), ("selector", None, "selector"), ("loss", None, "loss")],
)
def test_what_stops_being_finite_is_named_and_the_step_before_kept(breaks, expert, where):
    watch = Watch()
    with pytest.raises(NonFiniteError, match=rf"at step 37: .*{where}.* \(replica 1") as caught:
        train(
            Follow(breaks), begin(faults=[NEVER, 37]), DATA, steps=90, chunk=20, callbacks=[watch]
        )
    error = caught.value
    assert (error.step, error.replica, error.expert) == (37, 1, expert)
    assert watch.finished == 1
    assert int(error.run.step) == 36
    before = train(Follow(breaks), begin(faults=[NEVER, 37]), DATA, steps=36).run.state
    assert eqx.tree_equal(error.run.state, before)


def test_huge_but_finite_numbers_are_no_fault():
    class Huge(eqx.Module):
        def step(self, key, state, data):
            return state, {"loss": jnp.asarray(3e38)}

    end = train(Huge(), begin(), DATA, steps=30)
    np.testing.assert_allclose(end.history[0].info["loss"], 3e38, rtol=1e-4)


def test_ctrl_c_keeps_what_was_learned():
    with pytest.raises(TrainingInterrupted, match="interrupted at step 20") as caught:
        train(Follow(), begin(), DATA, steps=50, chunk=10, callbacks=[Watch(20, interrupt)])
    end = caught.value.trained
    assert end.ending == "interrupted"
    assert eqx.tree_equal(end.run, train(Follow(), begin(), DATA, steps=20).run)


def test_sigint_from_outside_ends_training_in_good_order():
    script = """
        import signal, test_training as t
        # Who runs the tests in the background may have had the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            t.train(t.Follow(), t.begin(), t.DATA, steps=10**9, chunk=1000,
                    callbacks=[t.Watch(1000, lambda: print("ready", flush=True))])
        except t.TrainingInterrupted as stop:
            end = stop.trained
        print(end.ending, int(end.run.step) > 0, bool(t.np.isfinite(end.run.state.experts).all()))
    """
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore::UserWarning", "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        output = None
        for _ in range(10):
            os.kill(child.pid, signal.SIGINT)
            # Python drops an interrupt that arrives in a finaliser: then one presses again.
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = child.communicate(timeout=60)
                break
    finally:
        child.kill()
    assert output == "interrupted True True\n"
    assert child.returncode == 0


def test_a_callback_can_stop_training_and_all_are_told():
    first, second = Watch(20, lambda: True), Watch()
    end = train(Follow(), begin(), DATA, steps=50, chunk=10, callbacks=[first, second])
    assert end.ending == "callback"
    assert second.seen == [(0, 50), 10, 20]
    assert (first.finished, second.finished) == (1, 1)


def test_callbacks_are_finished_whatever_another_does():
    def fail():
        raise OSError("disk full")

    class Unfinished(Watch):
        def finish(self):
            fail()

    first, last = Watch(), Watch(10, fail)
    with pytest.raises(OSError, match="disk full"):
        train(Follow(), begin(), DATA, steps=50, chunk=10, callbacks=[first, Unfinished(), last])
    assert (first.finished, last.finished) == (1, 1)


def test_a_run_goes_on_from_where_it_is():
    half = train(Follow(), begin(), DATA, steps=30).run
    watch = Watch()
    whole = train(Follow(), half, DATA, steps=60, callbacks=[watch]).run
    assert watch.seen == [(30, 60), 60]
    assert eqx.tree_equal(whole, train(Follow(), begin(), DATA, steps=60).run)
    assert train(Follow(), whole, DATA, steps=60).history == []


def scores(state):
    """Replica 0 is best at step 20, replica 1 at step 30."""
    return -jnp.abs(state.step - jnp.asarray([20, 30])).astype(float)


def test_the_best_state_of_every_replica_is_kept():
    end = train(Follow(), begin(keep_best=True), DATA, steps=60, chunk=10, evaluate=scores)
    assert end.ending == "finished"
    np.testing.assert_array_equal(end.run.best.score, [0.0, 0.0])
    np.testing.assert_array_equal(end.run.best.step, [20, 30])
    for replica, steps in enumerate((20, 30)):
        then = train(Follow(), begin(), DATA, steps=steps).run.state.experts[replica]
        np.testing.assert_array_equal(end.run.best.state.experts[replica], then)
    assert [progress.score[0] for progress in end.history] == [-10, 0, -10, -20, -30, -40]


def test_training_ends_when_no_replica_improves_any_more():
    end = train(
        Follow(), begin(keep_best=True), DATA, steps=500, chunk=10, evaluate=scores, patience=2
    )
    assert end.ending == "stale"
    assert int(end.run.step) == 50
    # Nor does it begin again when it is resumed.
    again = train(Follow(), end.run, DATA, steps=500, chunk=10, evaluate=scores, patience=2)
    assert (again.ending, int(again.run.step)) == ("stale", 50)


def test_keeping_the_best_needs_scores_and_the_other_way_round():
    with pytest.raises(ValueError, match="exactly when"):
        train(Follow(), begin(keep_best=True), DATA, steps=10)
    with pytest.raises(ValueError, match="exactly when"):
        train(Follow(), begin(), DATA, steps=10, evaluate=scores)


def log_likelihood(answer, target):
    return answer.log_prob(target)


LEARNER = Learner(CommitteeLoss(log_likelihood))


def learning(linear_hierarchy, keys, *, beta=5.0, learning_rate=3e-3, keep_best=False):
    def init(key):
        hierarchy = linear_hierarchy(key, 2)
        priors = Priors.running(hierarchy(jnp.zeros(2)), 0.99, 0.99)
        constraints = Constraints(priors, (Budget(0.5), Fixed(beta)))
        return LEARNER.init(hierarchy, constraints, learning_rate=learning_rate)

    return Run.start(keys, stack([init(key) for key in keys]), keep_best=keep_best)


def padded(rng, n):
    x, y = np.zeros((64, 2), np.float32), np.zeros(64, int)
    x[:n] = rng.normal(size=(n, 2))
    y[:n] = x[:n].prod(axis=1) > 0
    return Data(jnp.asarray(x), jnp.asarray(y), jnp.ones(64))


def test_another_fit_compiles_nothing(linear_hierarchy, rng, monkeypatch):
    # Other tests may have filled the caches, which would be emptied between the two fits.
    monkeypatch.setattr("pinfactory.core.training.forget_programs", lambda: None)
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    def fit(seed, n, steps, **settings):
        keys = jax.random.split(jax.random.key(seed), 2)
        run = learning(linear_hierarchy, keys, keep_best=True, **settings)
        train(
            LEARNER,
            run,
            padded(rng, n),
            steps=steps,
            batches=Epochs(n, 16),
            chunk=50,
            evaluate=lambda state: state.constraints.priors.stages[0].mass,
        )

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fit(0, 50, 40)
        assert compiled
        compiled.clear()
        fit(1, 61, 120, beta=jnp.float32(30.0), learning_rate=jnp.float32(1e-3))
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("tiny", [0, training.SMALL_STATE], ids=["side_by_side", "in_turn"])
def test_replicas_learn_as_if_each_were_alone(linear_hierarchy, rng, monkeypatch, tiny):
    keys, data = jax.random.split(jax.random.key(0), 2), padded(rng, 64)

    def learn(keys):
        run = learning(linear_hierarchy, keys)
        return train(LEARNER, run, data, steps=120, chunk=50, batches=Epochs(64, 16)).run.state

    monkeypatch.setattr(training, "SMALL_STATE", tiny)
    together = learn(keys)
    monkeypatch.setattr(training, "SMALL_STATE", 0)
    for replica in range(2):
        alone = learn(keys[replica : replica + 1])
        pairs = zip(
            *(jax.tree.leaves(eqx.filter(s, eqx.is_inexact_array)) for s in (together, alone)),
            strict=True,
        )
        for of_both, of_one in pairs:
            np.testing.assert_allclose(of_both[replica], of_one[0], rtol=1e-3, atol=1e-5)


def test_a_kernel_that_cannot_be_made_is_no_reason_to_fail(linear_hierarchy, rng, monkeypatch):
    keys, data = jax.random.split(jax.random.key(0), 2), padded(rng, 64)

    def learn():
        run = learning(linear_hierarchy, keys)
        return train(LEARNER, run, data, steps=20, batches=Epochs(64, 16)).run.state

    def fail(*arguments):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: unhandled opcode")

    monkeypatch.setattr(training, "SMALL_STATE", 0)
    monkeypatch.setattr(training, "NARROW", 0)
    expected = learn()
    monkeypatch.undo()
    monkeypatch.setattr(training, "_advance_by_loops", fail)
    assert eqx.tree_equal(learn(), expected)


def test_anything_that_advances_a_run_is_watched_until_nothing_is_left(monkeypatch):
    forgotten, seen = [], []
    monkeypatch.setattr("pinfactory.core.training.forget_programs", lambda: forgotten.append(True))

    class Watch(Callback):
        def start(self, run, total):
            seen.append(("start", total))

        def chunk(self, progress, run):
            seen.append((progress.step, int(run.step)))

    def advance(run):
        if int(run.step) == 4:
            return None
        return Chunk(Run(run.key, run.step + 2, run.state, None), {"objective": np.asarray(1.0)})

    run = Run(jax.random.key(0)[None], jnp.asarray(0), (), None)
    trained = run_chunks(advance, run, callbacks=[Watch()])
    assert (int(trained.run.step), trained.ending) == (4, "stale")
    assert seen == [("start", 0), (2, 2), (4, 4)]
    assert run_chunks(advance, run, 2).ending == "finished"
    # Whatever way it ends, programs of too many shapes are dropped.
    assert forgotten == [True, True]
