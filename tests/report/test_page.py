"""The page says what the files say."""

import hashlib
import json
import re
from html import unescape
from urllib.parse import unquote

import pytest

from pinfactory.experiments import Listing
from pinfactory.report import duration, number, write_page

pytest.importorskip("jinja2")

SVG = b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>"


def measure(name="accuracy", ours=0.9, **more):
    plain = {
        "spread": None,
        "paper": None,
        "target": None,
        "higher_is_better": True,
        "passed": None,
        "n": None,
        "unit": "",
        "paper_method": None,
    }
    return {"name": name, "ours": ours, **plain, **more}


@pytest.fixture
def store(tmp_path):
    def save(name, measures=(), explore=None, **changes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "figure.svg").write_bytes(SVG)
        files = {"figure.svg": hashlib.sha256(SVG).hexdigest()}
        if explore is not None:
            (folder / "explore.html").write_text(explore)
            files["explore.html"] = hashlib.sha256(explore.encode()).hexdigest()
        result = {
            "name": name,
            "kind": "figure",
            "title": f"Title of {name}",
            "about": "First & foremost `a < b`.\n\nSecond.",
            "place": "Section 4.1",
            "claim": "",
            "scale": "quick",
            "settings": {"seeds": 2, "sizes": [1, 2]},
            "seeds": 2,
            "skipped": {},
            "versions": {"jax": "1.2.3"},
            "commit": "abc",
            "processor": "Abacus",
            "cores": 2,
            "measures": list(measures),
            "seconds": 100.0,
            "cpu_seconds": 90.0,
            "finished": "2020-01-01T00:00:00+00:00",
            "files": files,
            "error": "",
        }
        (folder / "result.json").write_text(json.dumps(result | changes))
        return Listing(name, None)

    return save


def test_numbers_stand_beside_the_papers_and_the_target(store, tmp_path):
    judged = measure(ours=0.9876, spread=0.0123, paper=0.91, target=0.98, passed=True)
    page = write_page(tmp_path, [store("a", [judged])]).read_text()
    for text in ("<strong>0.988</strong> ± 0.012", "0.910", "≥ 0.980", "passed"):
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
    assert "<img" not in page


def test_what_did_not_run_is_listed_with_the_reason(store, tmp_path):
    listings = [store("a"), Listing("b", None, "needs tin"), Listing("c", None)]
    page = write_page(tmp_path, listings).read_text()
    assert "needs tin" in page
    assert "was not run" in page


def test_the_page_opens_with_one_claim_and_its_picture(store, tmp_path):
    files = {"opening.svg": hashlib.sha256(b"<svg>'%\n#</svg>").hexdigest()}
    listings = [store("a"), store("b", claim="Four beat `one`.", files=files)]
    (tmp_path / "b" / "opening.svg").write_bytes(b"<svg>'%\n#</svg>")
    page = write_page(tmp_path, listings).read_text()
    beginning = page.split("All figures")[0]
    assert '<p class="claim">Four beat <code>one</code>.</p>' in beginning
    (address,) = re.findall(r'src="(data:[^"]*)"', beginning)
    assert unquote(unescape(address)) == "data:image/svg+xml,<svg>'%\n#</svg>"


def test_there_is_a_column_for_the_papers_method_if_it_was_run(store, tmp_path):
    plain = write_page(tmp_path, [store("a", [measure(paper=0.5)])]).read_text()
    assert "paper’s method" not in plain
    page = write_page(tmp_path, [store("b", [measure(paper=0.5, paper_method=0.4321)])]).read_text()
    assert "paper’s method</th>" in page
    assert "0.432" in page


def test_the_overview_has_the_first_number_that_the_paper_prints(store, tmp_path):
    measures = [measure("speed"), measure("size", target=1.0), measure("accuracy", paper=0.5)]
    page = write_page(tmp_path, [store("a", measures)]).read_text()
    overview = page.split("All figures")[1].split("</section>")[0]
    assert "accuracy" in overview
    assert "speed" not in overview


def test_an_explorer_that_the_run_has_not_written_is_not_inserted(store, tmp_path):
    listing = store("a", explore="<p>explorer</p>")
    assert "<p>explorer</p>" in write_page(tmp_path, [listing]).read_text()
    (tmp_path / "a" / "explore.html").write_text("<script>alert(1)</script>")
    (tmp_path / "a" / "figure.svg").write_bytes(SVG + b" ")
    page = write_page(tmp_path, [listing]).read_text()
    assert "alert" not in page
    assert "was changed after the run" in page


@pytest.mark.parametrize(
    "damage", [lambda r: r[:-9], lambda r: b"[]", lambda r: b"{}", lambda r: b'{"name": "a"}']
)
def test_a_damaged_result_is_named_and_nothing_else_suffers(store, tmp_path, damage):
    listings = [store("a"), store("b")]
    path = tmp_path / "a" / "result.json"
    path.write_bytes(damage(path.read_bytes()))
    page = write_page(tmp_path, listings).read_text()
    assert "its result is damaged: run it again" in page
    assert "Title of b" in page


def test_benchmarks_have_a_table_of_their_own_if_they_were_run(store, tmp_path):
    store("b", kind="benchmark")
    benchmarks = [Listing("b", None, kind="benchmark"), Listing("c", None, kind="benchmark")]
    page = write_page(tmp_path, [store("a"), *benchmarks]).read_text()
    assert "Title of b" in page.split("All benchmarks")[1].split("</section>")[0]
    assert "was not run" not in page


def test_text_is_escaped_code_is_marked_and_paragraphs_are_kept(store, tmp_path):
    page = write_page(tmp_path, [store("a")]).read_text()
    assert "<p>First &amp; foremost <code>a &lt; b</code>.</p>" in page
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
