"""Experiments are found by being there."""

import re
import sys
from pathlib import Path

import pytest

from pinfactory.experiments import Experiment, choose, discover

GOOD = """
TITLE, ABOUT, PLACE, Settings = "t", "a", "Section {}", object
def pieces(settings): ...
def draw(results): ...
def measures(results): ...
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "toy_experiments"
    folder.mkdir()
    files = {
        "__init__": "",
        "_helper": "1/0",
        "late": GOOD.format("10.1"),
        "early": GOOD.format("9.2"),
        "poor": "import a_package_nobody_has.inside",
        "odd": "TITLE = 'only a title'",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield "toy_experiments"
    for name in [name for name in sys.modules if name.startswith("toy_experiments")]:
        del sys.modules[name]


def test_every_module_of_the_folder_is_an_experiment_or_says_what_it_needs():
    listings = discover()
    assert {"classification", "rate_utility_plane", "density"} <= {x.name for x in listings}
    for listing in listings:
        if listing.experiment is None:
            assert listing.remark.startswith("needs ")
        else:
            assert isinstance(listing.experiment, Experiment)


@pytest.mark.parametrize("name", [x.name for x in discover() if x.experiment is not None])
def test_every_experiment_has_two_presets_with_a_number_of_seeds(name):
    (listing,) = choose(discover(), [name])
    for preset in (listing.experiment.Settings.quick, listing.experiment.Settings.paper):
        assert preset().seeds >= 1
        assert preset(seeds=7).seeds == 7
        assert listing.experiment.pieces(preset(seeds=2))


def test_experiments_come_in_the_order_of_the_paper_and_the_others_last(package):
    names = [listing.name for listing in discover(package)]
    assert names == ["early", "late", "odd", "poor"]


def test_one_that_cannot_run_is_listed_with_the_reason(package):
    remarks = {listing.name: listing.remark for listing in discover(package)}
    assert remarks["poor"] == "needs a_package_nobody_has: pip install 'pinfactory[all]'"
    assert remarks["odd"].startswith("is no experiment: it lacks ABOUT, Settings")
    assert [x.name for x in choose(discover(package), [])] == ["early", "late"]
    with pytest.raises(ValueError, match="poor cannot run here: it needs a_package_nobody_has"):
        choose(discover(package), ["poor"])


def test_one_that_lacks_data_is_left_out_unless_it_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PINFACTORY_OMNIGLOT", str(tmp_path))
    listings = discover()
    remarks = {listing.name: listing.remark for listing in listings}
    assert "PINFACTORY_OMNIGLOT" in remarks["omniglot_table"]
    assert "omniglot_table" not in [listing.name for listing in choose(listings, [])]
    assert [listing.name for listing in choose(listings, ["omniglot_table"])] == ["omniglot_table"]


def test_names_may_have_dashes_and_repeat():
    chosen = choose(discover(), ["rate-utility-plane", "rate_utility_plane", "density"])
    assert [listing.name for listing in chosen] == ["rate_utility_plane", "density"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("clasification", "did you mean classification"), ("xyz", "--list prints all names")],
)
def test_a_wrong_name_gets_a_hint(name, hint):
    with pytest.raises(ValueError, match=hint):
        choose(discover(), [name])


def test_the_guide_names_experiments_that_there_are():
    page = (Path(__file__).parents[2] / "docs/guide/reproduce.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page.split("## What there is")[1], re.MULTILINE))
    assert named
    assert named <= {listing.name for listing in discover()}
