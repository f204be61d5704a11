"""Calls with bad settings and data: a documented error or a right answer."""

import numpy as np
import pytest
from fuzz_calls import LEARNERS, Call, fuzz, judge

pytestmark = pytest.mark.usefixtures("types_unchecked")

SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS if name != "SpecialistMixture"
]


@pytest.mark.parametrize("name", ["SpecialistMixture", *SLOW])
def test_bad_calls_are_refused_or_answered(name):
    counts, faults, trainings = fuzz(name, 30)
    assert faults == []
    assert trainings < counts.total()
    assert set(counts) == {"refused", "answered"}


def test_a_text_in_place_of_data_is_taken_for_a_path():
    outcome = judge(LEARNERS["SpecialistMixture"], None, Call({}, ("text", np.ones(60))))
    assert (outcome.name, outcome.fault) == ("refused", False)


class Careless:
    """A learner that does what none should."""

    def __init__(self, answer=0.0, error=None):
        self.answer, self.error = answer, error

    def fit(self, x, w):
        self.half_done_ = True
        if self.error:
            raise self.error

    def predict(self, x):
        if self.answer is None:
            raise ValueError
        return np.asarray(x)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (Call({"error": KeyError("x")}), "undocumented error"),
        (Call({"error": ValueError("x")}), "a failed training left traces"),
        (Call({"answer": None}), "an ordinary question is refused"),
        (Call({}, None, (np.nan,)), "answers are not finite"),
    ],
)
def test_faults_are_seen(call, fault):
    careless = LEARNERS["SpecialistMixture"]._replace(
        make=Careless,
        train=lambda model, *data: model.fit(*data),
        ask=lambda model, x: model.predict(x),
    )
    outcome = judge(careless, Careless(), call)
    assert (outcome.name, outcome.fault) == (fault, True)
