"""The page says what the files say."""

import json

import pytest

from pinfactory.experiments import Listing
from pinfactory.report import write_page
from pinfactory.report._page import duration, number

pytest.importorskip("jinja2")
pytest.importorskip("plotly")

SVG = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"


def measure(name="accuracy", ours=0.9, **more):
    plain = {
        "spread": None,
        "paper": None,
        "target": None,
        "higher_is_better": True,
        "passed": None,
    }
    return {"name": name, "ours": ours, **plain, **more}


@pytest.fixture
def store(tmp_path):
    def save(name, measures=(), explore=None, **changes):
        folder = tmp_path / name
        folder.mkdir()
        result = {
            "name": name,
            "title": f"Title of {name}",
            "about": "First & foremost.\n\nSecond.",
            "place": "Section 4.1",
            "scale": "quick",
            "settings": {"seeds": 2, "sizes": [1, 2]},
            "seeds": 2,
            "versions": {"jax": "1.2.3"},
            "measures": list(measures),
            "seconds": 100.0,
            "finished": "2020-01-01T00:00:00+00:00",
            "error": "",
        }
        (folder / "result.json").write_text(json.dumps(result | changes))
        (folder / "figure.svg").write_bytes(SVG)
        if explore is not None:
            (folder / "explore.html").write_text(explore)
        return Listing(name, None)

    return save


def test_numbers_stand_beside_the_papers_and_the_target(store, tmp_path):
    judged = measure(ours=0.9876, spread=0.0123, paper=0.91, target=0.98, passed=True)
    page = write_page(tmp_path, [store("a", [judged])]).read_text()
    for text in ("<strong>0.988</strong> ± 0.012", "0.910", "≥ 0.980", "passed", "1 of 1"):
        assert text in page


@pytest.mark.parametrize(
    ("passed", "status"),
    [([True, True], "passed"), ([True, False], "falls short"), ([None], "reported")],
)
def test_a_figure_passes_when_all_its_targets_are_met(store, tmp_path, passed, status):
    measures = [measure(target=None if p is None else 0.5, passed=p) for p in passed]
    page = write_page(tmp_path, [store("a", measures)]).read_text()
    overview = page.split('<h2 id="a-title">')[0]
    assert f'{status.replace(" ", "-")}">{status}</span>' in overview


def test_a_failure_is_shown_with_its_trace_and_without_a_figure(store, tmp_path):
    page = write_page(tmp_path, [store("a", error="Traceback: <no wire>")]).read_text()
    assert "Traceback: &lt;no wire&gt;" in page
    assert "data:image/svg+xml;base64" not in page


def test_what_did_not_run_is_listed_with_the_reason(store, tmp_path):
    listings = [store("a"), Listing("b", None, "needs tin"), Listing("c", None)]
    page = write_page(tmp_path, listings).read_text()
    assert "needs tin" in page
    assert "was not run" in page


def test_plotly_is_inside_once_and_only_if_something_needs_it(store, tmp_path):
    plain = write_page(tmp_path, [store("a")]).read_text()
    assert len(plain) < 50_000
    both = [store("b", explore="<p>b</p>"), store("c", explore="<p>c</p>")]
    page = write_page(tmp_path, both).read_text()
    assert "<p>b</p>" in page
    assert page.count("plotly.js v") == 1


def test_text_is_escaped_and_paragraphs_are_kept(store, tmp_path):
    page = write_page(tmp_path, [store("a")]).read_text()
    assert "<p>First &amp; foremost.</p>" in page
    assert "<p>Second.</p>" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.98765, "0.988"),
        (-1.5, "−1.500"),
        (12.3456, "12.35"),
        (123.456, "123.5"),
        (48000.0, "48,000"),
        (1e-5, "1e−05"),
        (-1e-16, "0.000"),
    ],
)
def test_numbers_have_the_digits_a_reader_needs(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "5 s"), (300.0, "5 min"), (9000.0, "2.5 h")])
def test_times_have_a_fitting_unit(seconds, text):
    assert duration(seconds) == text
