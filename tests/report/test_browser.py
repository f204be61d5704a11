"""Pages in a real browser: no error, no network, and controls that change the picture."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from pinfactory.cli import main
from pinfactory.experiments import Listing, run
from pinfactory.report import write_page

pytest.importorskip("selenium")
pytest.importorskip("jinja2")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("needs Debian's chromium and chromium-driver", allow_module_level=True)

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1300,1600",  # a click has to be within as much of a frame
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    listing = Listing("explored", import_module("toys.explored"))
    out = tmp_path_factory.mktemp("out")
    with ThreadPoolExecutor(1) as executor:
        (outcome,) = run([listing], out, progress=False, scheduler=executor)
    assert outcome.error == ""
    return write_page(out, [listing])


@pytest.fixture(scope="module")
def model_page(tmp_path_factory):
    """What the command line makes of a table with gaps, long names and markup."""
    random, out = np.random.default_rng(0), tmp_path_factory.mktemp("model")
    night, years = random.random(300) < 0.5, random.uniform(0, 30, 300)
    wage = np.where(night, 40.0 + 0.2 * years, 10.0 + 1.5 * years) + random.normal(0, 1, 300)
    town = random.choice(["Ayr", "Bath", "</td><script>throw 1</script>"], 300)
    years[::10] = np.nan
    name = "completed_years_of_service_with_the_present_employer"
    frame = pd.DataFrame({"wage": wage, "night": night, name: years, "town": town})
    frame.to_csv(out / "shifts.csv", index=False)
    with redirect_stdout(StringIO()):
        fit = ["fit", str(out / "shifts.csv"), "--target", "wage", "--experts", "2"]
        assert main([*fit, "--out", str(out)]) == 0
    return out / "report.html"


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def loaded(driver, page):
    """Return a browser that has loaded a page, and nothing since its logs were emptied."""
    for kind in ("performance", "browser"):
        driver.get_log(kind)
    driver.get(page.as_uri())
    return driver


@pytest.fixture(scope="module")
def browser(driver, page):
    loaded(driver, page)
    driver.switch_to.frame(driver.find_element(By.CSS_SELECTOR, "iframe.explore"))
    WebDriverWait(driver, 60).until(
        lambda d: d.find_elements(By.CSS_SELECTOR, "#explorer-plane .ring")
    )
    return driver


@contextmanager
def whole_page(browser):
    """Look at the page in place of the frame with the explorer."""
    browser.switch_to.default_content()
    try:
        yield
    finally:
        browser.switch_to.frame(browser.find_element(By.CSS_SELECTOR, "iframe.explore"))


def scroll_to_frame(browser, within):
    """Show what is so many pixels below the upper end of the frame."""
    with whole_page(browser):
        browser.execute_script(
            """const top = document.querySelector("iframe.explore").getBoundingClientRect().top;
            scrollBy({top: top + arguments[0] - innerHeight / 2, behavior: "instant"});""",
            within,
        )


def test_a_script_of_the_folder_reaches_nothing_of_the_page_and_all_of_it_is_seen(browser):
    reach = "try { return parent.document.title; } catch (error) { return error.name; }"
    assert browser.execute_script(reach) == "SecurityError"

    def is_seen(browser):
        scroll_to_frame(browser, 0)  # a frame that nobody sees is not drawn
        needed = browser.execute_script("return document.documentElement.offsetHeight;")
        with whole_page(browser):
            return browser.find_element(By.CSS_SELECTOR, "iframe.explore").size["height"] == needed

    WebDriverWait(browser, 60).until(is_seen)


def shown(browser):
    """Return everything the explorer shows: texts, picture, boundary, mark in the plane."""
    return browser.execute_script(
        """const text = n => document.getElementById("explorer-" + n).textContent;
        const get = n => document.getElementById("explorer-" + n);
        return {accuracy: text("accuracy"), selector: text("selector"), expert: text("expert"),
            overall: text("overall"), experts: text("experts-value"), first: text("first-value"),
            second: text("second-value"), name: text("first-name"),
            shares: get("shares").children.length, image: get("image").getAttribute("href"),
            boundary: get("boundary").getAttribute("d"),
            ring: document.querySelector("#explorer-plane .ring").dataset.place};"""
    )


def slide(browser, name, value):
    browser.execute_script(
        """const slider = document.getElementById("explorer-" + arguments[0]);
        slider.value = arguments[1]; slider.dispatchEvent(new Event("input"));""",
        name,
        value,
    )


def require_alone(browser, page):
    """Refuse errors on the console, and requests for anything but the page."""
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        # The browser's own start page may still be loading its parts.
        and not message["params"]["documentURL"].startswith("chrome://")
    ]
    assert page.as_uri() in asked
    assert all(url == page.as_uri() or url.startswith("data:") for url in asked)


def require_within(browser, width):
    """Refuse a page that sticks out to the side of a window."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_page_loads_without_errors_and_without_the_network(browser, page):
    require_alone(browser, page)


def test_every_control_changes_numbers_and_picture(browser):
    slide(browser, "experts", 1)
    slide(browser, "first", 0)
    slide(browser, "second", 0)
    before = shown(browser)
    assert (before["accuracy"], before["shares"], before["experts"]) == ("50.4 %", 4, "4")
    slide(browser, "first", 2)
    first = shown(browser)
    assert (first["accuracy"], first["selector"], first["first"]) == ("70.4 %", "0.60 bit", "1.5")
    assert first["image"] != before["image"]
    assert first["ring"] == "4,2,0"
    slide(browser, "second", 2)
    second = shown(browser)
    assert (second["expert"], second["second"]) == ("0.40 bit", "20.5")
    assert second["boundary"] != first["boundary"]
    slide(browser, "experts", 0)
    one = shown(browser)
    assert (one["experts"], one["shares"], one["first"]) == ("1", 1, "–")


def test_budgets_can_be_chosen_instead_of_prices(browser):
    slide(browser, "experts", 1)
    slide(browser, "first", 1)
    before = shown(browser)
    Select(browser.find_element(By.ID, "explorer-mode")).select_by_value("budgets")
    after = shown(browser)
    assert before["name"] != after["name"]
    assert (before["selector"], after["selector"]) == ("0.30 bit", "0.35 bit")
    Select(browser.find_element(By.ID, "explorer-mode")).select_by_value("prices")


def click_where_it_stays(browser, element):
    """Click with the mouse, once plots that are still being drawn no longer move the element."""
    scroll = """arguments[0].scrollIntoView({block: 'center', behavior: 'instant'});
        const box = arguments[0].getBoundingClientRect();
        const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
        return [x, y, document.elementFromPoint(x, y) === arguments[0]];"""

    def stays(browser):
        rectangle = "return arguments[0].getBoundingClientRect().y;"
        scroll_to_frame(browser, browser.execute_script(rectangle, element))
        before = browser.execute_script(scroll, element)
        return before[2] and before == browser.execute_script(scroll, element)

    WebDriverWait(browser, 60, poll_frequency=0.2).until(stays)
    webdriver.ActionChains(browser).move_to_element(element).click().perform()


def test_a_click_on_a_dot_shows_its_committee(browser):
    dot = browser.find_element(By.CSS_SELECTOR, '#explorer-plane .dot[data-place="4,2,1"]')
    click_where_it_stays(browser, dot)
    WebDriverWait(browser, 60).until(lambda browser: shown(browser)["ring"] == "4,2,1")
    after = shown(browser)
    assert (after["experts"], after["first"], after["second"]) == ("4", "1.5", "5.5")


@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_sticks_out_to_the_side(browser, width):
    with whole_page(browser):
        require_within(browser, width)
    sizes = "return [document.documentElement.scrollWidth, innerWidth];"
    inner, available = browser.execute_script(sizes)
    assert inner <= available < width


def test_the_dark_scheme_changes_page_and_plots(browser):
    def look():
        fill = "return getComputedStyle(document.querySelector('#explorer-plane text')).fill;"
        with whole_page(browser):
            color = "return getComputedStyle(document.body).backgroundColor;"
            background = browser.execute_script(color)
        return [background, browser.execute_script(fill)]

    def choose(scheme):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)

    choose("light")
    light = look()
    choose("dark")
    WebDriverWait(browser, 60).until(
        lambda _: all(a != b for a, b in zip(light, look(), strict=True))
    )


def test_the_report_of_a_model_stands_alone_at_any_width(driver, model_page):
    """The last test: it loads another page."""
    driver.switch_to.default_content()
    loaded(driver, model_page)
    require_alone(driver, model_page)
    pictures = driver.find_elements(By.TAG_NAME, "img") + driver.find_elements(By.TAG_NAME, "svg")
    assert pictures
    for width in (1200, 400):
        require_within(driver, width)
        assert all(picture.size["width"] > 100 for picture in pictures)
    assert driver.find_elements(By.TAG_NAME, "script") == []
