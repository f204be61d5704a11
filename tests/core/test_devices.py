"""Rows shared among devices and processes. JAX fixes its devices once: scripts run on their own."""

import os
import socket
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from pinfactory import SpecialistRegressor, data_parallel
from pinfactory.core.batches import current_mesh

# Committees on four devices, in steps of ten rows, beside the same on one.
SHARED = """
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np

    from pinfactory import data_parallel, networks
    from pinfactory.core.batches import Epochs
    from pinfactory.core.constraints import Constraints, Fixed, Priors
    from pinfactory.core.batches import current_mesh, share_rows
    from pinfactory.core.families import Categorical
    from pinfactory.core.hierarchy import FamilyExpert, assemble, stack
    from pinfactory.core.learning import CommitteeLoss, Data, Learner
    from pinfactory.core.training import Run, train
    from pinfactory.estimators.classifier import log_likelihood_of_code

    random = np.random.default_rng(0)
    x = random.normal(size=(64, 3)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    data = Data(jnp.asarray(x), jnp.asarray(y), jnp.ones(64))
    learner = Learner(CommitteeLoss(log_likelihood_of_code), keep_average=True)

    def start(seed):
        hierarchy = assemble(
            jax.random.key(seed),
            lambda key: networks.linear(3, 4, key=key),
            lambda key: FamilyExpert(networks.linear(3, 2, key=key), Categorical.from_logits),
            4,
        )
        priors = Priors.running(hierarchy(jnp.zeros(3)), 0.99, 0.99)
        resources = (Fixed(25.0), Fixed(20.0))
        return learner.init(hierarchy, Constraints(priors, resources), learning_rate=0.01)

    def trained():
        run = Run.start(jax.random.split(jax.random.key(0), 2), stack([start(0), start(1)]))
        end = train(learner, run, data, batches=Epochs(64, 10), steps=30, chunk=20)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(end.run.state) if eqx.is_array(leaf)]

    assert len(jax.devices()) == 4
    alone = trained()
    with data_parallel():
        shared = trained()
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    with data_parallel(jax.devices()[:2]):
        mesh = current_mesh()
        parts = jax.jit(lambda x: share_rows(mesh, x) + 1.0)(data.x).addressable_shards
    assert [part.data.shape for part in parts] == [(32, 3), (32, 3)]
    print("same")
"""

# One of two processes; the second has other data if asked to.
PROCESS = """
    import sys

    import jax
    import numpy as np

    from pinfactory import SpecialistRegressor, data_parallel

    address, number, path, shift = sys.argv[1:]
    jax.distributed.initialize(address, 2, int(number), coordinator_bind_address=address)
    X, y = (np.load("table.npz")[name] for name in ("X", "y"))
    committee = SpecialistRegressor(2, max_iter=100, early_stopping=True, random_state=0)
    with data_parallel():
        np.save(path, committee.fit(X, y).predict(X))
        try:
            committee.fit(X, y + float(shift) * int(number))
        except ValueError as error:
            assert "same data, settings and seed" in str(error)
            print("refused")
"""


def script(text: str, *arguments: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | environment
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_without_other_devices_nothing_is_shared():
    assert current_mesh() is None
    with data_parallel(jax.devices()[:1]):
        assert current_mesh() is None
    with pytest.raises(ValueError, match="at least one device"), data_parallel([]):
        pass


def test_four_devices_learn_what_one_does():
    child = script(SHARED, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    output, _ = child.communicate(timeout=600)
    assert (child.returncode, output) == (0, "same\n")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="a port cannot be reserved here")
def test_two_processes_learn_what_one_does_and_refuse_other_data(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    X = rng.normal(size=(300, 3))
    y = np.abs(X[:, 0]) + 0.1 * rng.normal(size=300)
    np.savez("table.npz", X=X, y=y)
    # Bound and never listened at, the port is nobody else's; the coordinator may bind it as well.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        paths = [tmp_path / f"{number}.npy" for number in range(2)]
        children = [
            script(PROCESS, address, str(number), str(path), "1.0")
            for number, path in enumerate(paths)
        ]
        committee = SpecialistRegressor(2, max_iter=100, early_stopping=True, random_state=0)
        try:
            alone = committee.fit(X, y).predict(X)
            outputs = [child.communicate(timeout=600)[0] for child in children]
        finally:
            for child in children:
                child.kill()
    assert [child.returncode for child in children] == [0, 0]
    assert all("refused" in output for output in outputs)
    first, second = map(np.load, paths)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, alone, rtol=0.01, atol=0.01)
