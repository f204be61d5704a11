"""Experiments are found by being there."""

import re
import sys
from pathlib import Path

import pytest

from pinfactory.experiments import Experiment, choose, discover
from pinfactory.experiments._registry import how_to_install

GOOD = """
TITLE, ABOUT, PLACE, Settings = "t", "a", "Section {}", object
def pieces(settings): ...
def draw(results): ...
def measures(results): ...
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    files = {
        "__init__": "",
        "_helper": "1/0",
        "late": GOOD.format("10.1"),
        "early": GOOD.format("9.2"),
        "poor": "import a_package_nobody_has.inside",
        "poorer": GOOD.format(1) + "REQUIRES = ('json', 'stable_baselines3_of_tin')",
        "odd": "TITLE = 'only a title'",
    }
    for package, names in (("toy_figures", list(files)), ("toy_figures/races", ["__init__"])):
        folder = tmp_path / package
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text(files[name])
    (tmp_path / "toy_figures" / "races" / "race.py").write_text(GOOD.format(1))
    monkeypatch.syspath_prepend(tmp_path)
    yield {"figure": "toy_figures", "benchmark": "toy_figures.races"}
    for name in [name for name in sys.modules if name.startswith("toy_figures")]:
        del sys.modules[name]


def test_every_module_of_both_folders_is_an_experiment_or_says_what_it_needs():
    listings = discover()
    names = [x.name for x in listings]
    assert {"classification", "rate_utility_plane", "density", "fit_speed"} <= set(names)
    assert len(set(names)) == len(names)
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


def test_experiments_come_by_kind_in_the_order_of_the_paper_and_the_others_last(packages):
    found = [(listing.name, listing.kind) for listing in discover(packages)]
    figures = ["early", "late", "odd", "poor", "poorer"]
    assert found == [*((name, "figure") for name in figures), ("race", "benchmark")]


def test_one_that_cannot_run_is_listed_with_the_reason_and_the_remedy(packages):
    listings = discover(packages)
    remarks = {listing.name: listing.remark for listing in listings}
    assert remarks["poor"] == "needs a_package_nobody_has: pip install a_package_nobody_has"
    assert remarks["poorer"].startswith("needs stable_baselines3_of_tin: pip install ")
    assert remarks["odd"].startswith("is no experiment: it lacks ABOUT, Settings")
    with pytest.raises(ValueError, match="poor cannot run here: it needs a_package_nobody_has"):
        choose(listings, ["poor"])


def test_without_names_those_of_a_kind_are_chosen(packages):
    listings = discover(packages)
    chosen = {kind: [x.name for x in choose(listings, [], kind)] for kind in (*packages, None)}
    assert chosen == {
        "figure": ["early", "late"],
        "benchmark": ["race"],
        None: ["early", "late", "race"],
    }
    assert [x.name for x in choose(listings, ["race"], "figure")] == ["race"]


def test_what_an_extra_of_ours_brings_is_installed_with_it():
    assert how_to_install("stable_baselines3") == "pip install 'pinfactory[baselines]'"
    assert how_to_install("plywood") == "pip install plywood"


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


def test_the_page_names_the_experiments_that_there_are_and_leads_to_the_page_of_each():
    page = (Path(__file__).parents[2] / "docs/experiments.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| \[`(\w+)`\]\(results/\1\.md\) \|", page, re.MULTILINE))
    assert named == {listing.name for listing in discover()}
