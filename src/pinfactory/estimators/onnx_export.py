"""A committee as an ONNX graph, built from its weights: `to_onnx`."""

import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from sklearn.base import is_classifier

from pinfactory import networks
from pinfactory.core.hierarchy import NEVER, Hierarchy
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.persistence import atomic_write

from .committee import Committee
from .explain import encoding_of, require_all_asked
from .table_learner import FARTHEST

# Versions of the operators and of the format that runtimes since 2023 know.
OPSET, FORMAT = 17, 8
ACTIVATIONS = {networks.tanh: "Tanh", networks.relu: "Relu"}


class Graph:
    """Nodes and constants of a graph, in the order in which they are computed."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "", **settings: Any) -> str:
        """Add a node, and return the name of its output."""
        from onnx import helper

        name = name or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def binary(self, kind: str, left: str, right: Any, name: str = "") -> str:
        """Add a node with a constant as its second input."""
        return self.node(kind, left, self.constant(right), name=name)

    def network(self, network: Any, x: str) -> str:
        """Add a network; stacked ones have an axis of experts before that of rows."""
        if isinstance(network, eqx.nn.Sequential):
            for layer in network.layers:
                x = self.network(layer, x)
            return x
        if isinstance(network, eqx.nn.Linear) and network.bias is not None:
            weight, bias = np.asarray(network.weight), np.asarray(network.bias)
            x = self.binary("MatMul", x, weight.swapaxes(-1, -2))
            return self.binary("Add", x, bias[..., None, :] if bias.ndim > 1 else bias)
        if isinstance(network, eqx.nn.Lambda) and network.fn in ACTIVATIONS:
            return self.node(ACTIVATIONS[network.fn], x)
        if isinstance(network, eqx.nn.Lambda) and network.fn is networks.limit:
            return self._clip(x, np.float32(networks.FARTHEST_SELECTED))
        if isinstance(network, networks.Residual):
            return self.node("Add", self.network(network.linear, x), self.network(network.mlp, x))
        if isinstance(network, networks.Constant):
            # Zero times the inputs' sum gives it the rows.
            rows = self.node("ReduceSum", x, self.constant(np.array([-1])), keepdims=1)
            nothing = self.binary("Mul", rows, np.float32(0.0))
            return self.binary("Add", nothing, np.asarray(network.bias)[..., None, :])
        if isinstance(network, networks.SoftTree):
            return self._tree(network, x)
        raise ValueError(
            "`to_onnx` knows linear maps, perceptrons and trees, but not "
            f"{type(network).__name__}: use selector and expert by name."
        )

    def _tree(self, tree: networks.SoftTree, x: str) -> str:
        """Log-probabilities of the leaves: log σ(g) = −softplus(−g) of every gate on the way."""
        seen = self._clip(x, np.float32(networks.FARTHEST_SELECTED))
        gate = self.binary("MatMul", seen, np.asarray(tree.weight).T)
        gate, path = self.binary("Add", gate, np.asarray(tree.bias)), np.asarray(tree.path)
        above = self.node("Softplus", self.node("Neg", gate))
        sides = ((above, path > 0), (self.node("Softplus", gate), path < 0))
        parts = [self.binary("MatMul", side, -on.T.astype(np.float32)) for side, on in sides]
        return self.node("Add", *parts)

    def _clip(self, x: str, most: Any) -> str:
        return self.node("Clip", x, self.constant(-most), self.constant(most))

    def standardised(self, committee: Committee, x: str) -> str:
        """Add what turns a user's numbers into the inputs of the networks."""
        scaler = committee.scaler_
        x = self.binary("Sub", x, scaler.mean_.astype(np.float64))
        x = self.binary("Div", x, scaler.scale_.astype(np.float64))
        return self.cast(self._clip(x, np.float64(FARTHEST)), np.float32)

    def cast(self, x: str, dtype: Any) -> str:
        """Add a change of type."""
        from onnx import helper

        return self.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def to_onnx(committee: Committee, path: str | os.PathLike[str]) -> None:
    """Write a committee as an ONNX graph.

    Its input ``x`` is the matrix of numbers that the committee sees, in double precision: the
    array itself, or `encoding_.transform(frame)` of a data frame, whose columns are named in the
    metadata ``features``. Its outputs are

    - ``prediction``: the expected value, or the most probable class,
    - ``probabilities``: of every class (classifiers only),
    - ``responsibilities``: p(m|x),
    - ``bits``: Σ_m p(m|x) log₂ p(m|x)/p(m), whose mean over the rows of `fit` is I(X;M).

    Parameters
    ----------
    committee
        A fitted committee whose selector and experts are given by name.
    path
        Where to write.
    """
    try:
        from onnx import checker, helper
    except ImportError as error:
        raise ImportError("`to_onnx` needs pip install 'pinfactory[onnx]'.") from error
    hierarchy, graph = committee.state_.model, Graph()
    require_all_asked(committee, "to_onnx")
    x = graph.standardised(committee, "x")
    _shares(graph, committee, hierarchy, x)
    outputs = _predictions(graph, committee, hierarchy, x)
    n_inputs, n_experts = len(committee.scaler_.mean_), len(hierarchy.available)
    outputs |= {"responsibilities": ("float", ["rows", n_experts]), "bits": ("float", ["rows"])}
    made = helper.make_graph(
        graph.nodes,
        "committee",
        [_value("x", "double", ["rows", n_inputs])],
        [_value(name, *kind) for name, kind in outputs.items()],
        graph.constants,
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="pinfactory"
    )
    model.ir_version = FORMAT
    features = [feature.name for feature in encoding_of(committee).features]
    helper.set_model_props(model, {"features": "\n".join(features)})
    checker.check_model(model, full_check=True)
    with atomic_write(path) as stream:
        stream.write(model.SerializeToString())


def _value(name: str, kind: str, shape: Sequence[Any]) -> Any:
    from onnx import TensorProto, helper

    types = {
        **{"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE},
        **{"int64": TensorProto.INT64, "string": TensorProto.STRING},
    }
    return helper.make_tensor_value_info(name, types[kind], list(shape))


def _shares(graph: Graph, committee: Committee, hierarchy: Hierarchy, x: str) -> None:
    """Add p(m|x) and the bits of every row."""
    closed = np.where(np.asarray(hierarchy.available), 0.0, NEVER).astype(np.float32)
    logits = graph.binary("Add", graph.network(hierarchy.selector, x), closed)
    share = graph.node("Softmax", logits, axis=1, name="responsibilities")
    prior = np.maximum(committee.information_.responsibility, np.finfo(np.float32).tiny)
    ratio = graph.binary(
        "Sub", graph.node("LogSoftmax", logits, axis=1), np.log(prior, dtype=np.float32)
    )
    # Experts that are never asked have no part in the sum, whatever their ratio.
    bits = graph.node("Mul", share, graph.binary("Mul", ratio, np.float32(BITS_PER_NAT)))
    graph.node("ReduceSum", bits, graph.constant(np.array([1])), keepdims=0, name="bits")


def _answers(graph: Graph, hierarchy: Hierarchy, x: str) -> str:
    """Add what the networks of all experts give: rows × experts × outputs."""
    experts: Any = hierarchy.experts
    rows = graph.node("Unsqueeze", x, graph.constant(np.array([0])))
    return graph.node("Transpose", graph.network(experts.network, rows), perm=[1, 0, 2])


def _predictions(
    graph: Graph, committee: Committee, hierarchy: Hierarchy, x: str
) -> dict[str, Any]:
    """Add the joint answer; return types and shapes of the outputs."""
    ends, beyond = [x], committee._extension
    if beyond is not None:
        ranges = zip(*(end.astype(np.float32) for end in beyond[:2]), strict=True)
        ends = [graph.binary("Max", graph.binary("Min", x, high), low) for low, high in ranges]
    answers = _answers(graph, hierarchy, ends[0])
    share = graph.node("Unsqueeze", "responsibilities", graph.constant(np.array([1])))
    if is_classifier(committee):
        return _classes(graph, committee, share, answers)
    target = committee.target_scaler_
    n_targets = len(target.mean_)
    # Beyond the means, outputs tell how sure an expert is.
    first = [graph.constant(np.array([i])) for i in (0, n_targets, 2)]
    mean = graph.node("MatMul", share, graph.node("Slice", answers, *first))
    mean = graph.node("Squeeze", mean, graph.constant(np.array([1])))
    slopes = () if beyond is None else beyond.slope
    for slope, inner, outer in zip(slopes, ends, [*ends[1:], x], strict=False):
        outside = graph.node("Sub", outer, inner)
        more = graph.binary("MatMul", outside, slope.T.astype(np.float32))
        mean = graph.node("Add", mean, more)
    mean = graph.binary("Mul", graph.cast(mean, np.float64), target.scale_.astype(np.float64))
    mean = graph.binary("Add", mean, target.mean_.astype(np.float64))
    if committee._one_output:
        graph.node("Squeeze", mean, graph.constant(np.array([1])), name="prediction")
        return {"prediction": ("double", ["rows"])}
    graph.node("Identity", mean, name="prediction")
    return {"prediction": ("double", ["rows", n_targets])}


def _classes(graph: Graph, committee: Committee, share: str, answers: str) -> dict[str, Any]:
    probs = graph.node("MatMul", share, graph.node("Softmax", answers, axis=2))
    probs = graph.node("Squeeze", probs, graph.constant(np.array([1])), name="probabilities")
    best = graph.node("ArgMax", probs, axis=1, keepdims=0)
    labels = committee.classes_
    whole = labels.dtype.kind in "iub"
    known = labels.astype(np.int64) if whole else labels.astype(str).astype(object)
    graph.node("Gather", graph.constant(known), best, axis=0, name="prediction")
    shape = ["rows", len(labels)]
    kind = "int64" if whole else "string"
    return {"prediction": (kind, ["rows"]), "probabilities": ("float", shape)}
