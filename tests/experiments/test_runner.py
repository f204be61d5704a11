"""Pieces are computed once, kept whatever happens, and turned into result and figure."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from matplotlib.figure import Figure

from pinfactory.experiments import Listing, Measure, run


@dataclass(frozen=True)
class Settings:
    seeds: int = 3
    n: int = 4

    @classmethod
    def quick(cls, **changes):
        return cls(**changes)

    @classmethod
    def paper(cls, **changes):
        return cls(**{"n": 5} | changes)


class Toy:
    """An experiment that writes down what it computes, and can be told to fail."""

    TITLE, ABOUT, PLACE = "Toy", "About it.", "Section 1"
    Settings = Settings

    def __init__(self):
        self.computed = []
        self.trouble = {}

    def pieces(self, settings):
        def compute(i):
            if i in self.trouble:
                raise self.trouble[i]
            self.computed.append(i)
            return {"square": np.float32(i) ** 2, "seeds": settings.seeds}

        return {f"piece {i}/": lambda i=i: compute(i) for i in range(settings.n)}

    def draw(self, results):
        figure = Figure()
        figure.subplots().plot([piece["square"] for piece in results.values()])
        return figure

    def measures(self, results):
        squares = [piece["square"] for piece in results.values()]
        return [
            Measure("mean", float(np.mean(squares)), float(np.std(squares)), target=3.0),
            Measure("nothing", float("nan"), paper=2.0),
        ]


@pytest.fixture
def toy():
    return Toy()


def go(toy, out, name="toy", **settings):
    (outcome,) = run([Listing(name, toy)], out, progress=False, **settings)
    return outcome


def test_a_run_leaves_result_and_figure(toy, tmp_path):
    outcome = go(toy, tmp_path)
    result = json.loads((tmp_path / "toy" / "result.json").read_text(), parse_constant=pytest.fail)
    assert (result["title"], result["about"], result["place"]) == ("Toy", "About it.", "Section 1")
    assert (result["scale"], result["settings"], result["seeds"]) == (
        "quick",
        {"seeds": 3, "n": 4},
        3,
    )
    assert {"pinfactory", "jax", "numpy"} <= set(result["versions"])
    mean, nothing = result["measures"]
    assert (mean["ours"], mean["target"], mean["passed"]) == (3.5, 3.0, True)
    assert mean["spread"] == pytest.approx(np.std([0, 1, 4, 9]))
    assert (nothing["ours"], nothing["paper"], nothing["passed"]) == (None, 2.0, None)
    assert result["seconds"] == outcome.seconds > 0
    assert result["error"] == ""
    assert (tmp_path / "toy" / "figure.svg").read_text().startswith("<?xml")
    assert (tmp_path / "toy" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_finished_pieces_are_not_computed_again(toy, tmp_path):
    first = go(toy, tmp_path)
    again = go(toy, tmp_path)
    assert toy.computed == [0, 1, 2, 3]
    assert again.measures[0] == first.measures[0]
    assert again.seconds == first.seconds


def test_other_settings_never_find_the_pieces_of_these(toy, tmp_path):
    go(toy, tmp_path)
    go(toy, tmp_path, seeds=9)
    assert toy.computed == [0, 1, 2, 3] * 2
    go(toy, tmp_path, scale="paper")
    assert toy.computed == [0, 1, 2, 3] * 2 + [0, 1, 2, 3, 4]


def test_an_interrupted_run_keeps_finished_pieces_and_goes_on_from_there(toy, tmp_path):
    toy.trouble = {2: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        go(toy, tmp_path)
    toy.trouble = {}
    assert go(toy, tmp_path).error == ""
    assert toy.computed == [0, 1, 2, 3]


def test_a_damaged_piece_is_computed_again(toy, tmp_path):
    go(toy, tmp_path)
    piece = next((tmp_path / "toy" / "pieces").glob("piece-2-*"))
    piece.write_bytes(piece.read_bytes()[:-5])
    assert go(toy, tmp_path).error == ""
    assert toy.computed == [0, 1, 2, 3, 2]


def test_one_that_fails_does_not_keep_the_others_from_running(toy, tmp_path):
    broken = Toy()
    broken.trouble = {1: RuntimeError("no wire left")}
    outcomes = run([Listing("broken", broken), Listing("toy", toy)], tmp_path, progress=False)
    assert [outcome.error for outcome in outcomes] == ["RuntimeError: no wire left", ""]
    stored = json.loads((tmp_path / "broken" / "result.json").read_text())
    assert "no wire left" in stored["error"]
    assert "Traceback" in stored["error"]
    assert broken.computed == [0]


def test_data_that_are_not_plain_are_an_error_that_says_so(toy, tmp_path):
    toy.pieces = lambda settings: {"odd": lambda: object()}
    assert "must return plain data" in go(toy, tmp_path).error


@pytest.mark.parametrize("kind", ["html", "plotly"])
def test_an_interactive_part_is_stored_for_the_page(toy, tmp_path, kind):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = graph_objects.Figure(graph_objects.Scatter(y=[1, 2]))
    toy.explore = lambda results: "<p>four pieces</p>" if kind == "html" else figure
    go(toy, tmp_path)
    stored = (tmp_path / "toy" / "explore.html").read_text()
    assert ("four pieces" if kind == "html" else "Plotly.newPlot") in stored
    assert "<html" not in stored
    assert "cdn" not in stored


def test_outcomes_are_reported_as_they_come(toy, tmp_path):
    seen = []
    run([Listing("a", toy), Listing("b", toy)], tmp_path, progress=False, report=seen.append)
    assert [outcome.name for outcome in seen] == ["a", "b"]


def test_the_bar_counts_all_pieces_and_fits_into_80_columns(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    run([Listing("a" * 40, toy), Listing("b", toy)], tmp_path)
    shown = capsys.readouterr().err.replace("\n", "\r").split("\r")
    assert "8/8" in shown[-2] or "8/8" in "".join(shown)
    assert max(map(len, shown)) <= 80
