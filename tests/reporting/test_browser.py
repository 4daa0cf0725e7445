"""The page opens in a real browser: figures are there, nothing is complained of."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import archlearn_cli as cli
from tests.reporting.browsers import CHROMIUM, Browser, run_browser
from tests.reporting.run_folders import LENET, write_run

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium found; on Debian: apt-get install chromium"
)

SIZES = """[...document.querySelectorAll('figure svg')].map(svg => {
    const box = svg.getBoundingClientRect();
    return [box.width, box.height, svg.querySelectorAll('text').length];
})"""
INK = "getComputedStyle(document.querySelector('figure svg text')).fill"
PAPER = "getComputedStyle(document.body).backgroundColor"
COVERED = """[...document.querySelectorAll('#architecture svg')].flatMap(svg => {
    const bars = [...svg.querySelectorAll('path')].map(bar => bar.getBoundingClientRect());
    return [...svg.querySelectorAll('text')].filter(text => {
        const own = text.getBoundingClientRect();
        return bars.some(bar => bar.left < own.right && own.left < bar.right
            && bar.top < own.bottom && own.top < bar.bottom && bar.height < own.height * 3);
    }).map(text => text.textContent);
})"""
OUTSIDE = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => {
        const own = text.getBoundingClientRect();
        return own.left < box.left - 2 || own.right > box.right + 2;
    }).map(text => text.textContent);
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with run_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    merged = replace(LENET, after={"conv1": 11, "fc1": 29, "fc2": 10}, merged=["conv2"])
    run = write_run(folder / "a", merged)
    half = write_run(folder / "half", finished=False)
    return {
        "one": cli.reporting.write_report(run, folder / "one.html"),
        "unfinished": cli.reporting.write_report(half, folder / "unfinished.html"),
    }


def show(browser: Browser, page: Path, width: int = 1100, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    browser.complaints.clear()
    browser.loaded.clear()
    browser.open(page)


@pytest.mark.parametrize(("name", "n_figures"), [("one", 8), ("unfinished", 7)])
def test_every_figure_is_drawn_and_nothing_is_complained_of(
    browser: Browser, pages: dict[str, Path], name: str, n_figures: int
) -> None:
    show(browser, pages[name])
    sizes = browser.evaluate(SIZES)
    assert len(sizes) == n_figures
    assert all(width > 200 and height > 80 and n_texts > 3 for width, height, n_texts in sizes)
    assert browser.complaints == []


@pytest.mark.parametrize("name", ["one", "unfinished"])
def test_nothing_but_the_page_is_loaded(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    show(browser, pages[name])
    assert [url for url in browser.loaded if not url.startswith("data:")] == [pages[name].as_uri()]


@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("name", ["one", "unfinished"])
def test_the_page_is_no_wider_than_its_window(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    show(browser, pages[name], width)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OUTSIDE) == []


def test_long_names_do_not_run_into_the_bars(browser: Browser, tmp_path: Path) -> None:
    before = {"features.stage.1.convolution": 512, "features.stage.2.convolution": 512, "out": 10}
    after = {"features.stage.2.convolution": 128, "out": 10}
    run = write_run(tmp_path / "a", replace(LENET, before=before, after=after))
    show(browser, cli.reporting.write_report(run, tmp_path / "long.html"))
    assert browser.evaluate("document.querySelectorAll('#architecture text').length") == 6
    assert browser.evaluate(COVERED) == []


def test_figures_follow_the_scheme_of_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        show(browser, pages["one"], scheme=scheme)
        seen[scheme] = (brightness(browser.evaluate(INK)), brightness(browser.evaluate(PAPER)))
    assert seen["light"][0] < 0.5 < seen["light"][1]
    assert seen["dark"][1] < 0.5 < seen["dark"][0]


def test_the_page_prints(browser: Browser, pages: dict[str, Path]) -> None:
    show(browser, pages["one"], scheme="dark")
    assert len(browser.call("Page.printToPDF", printBackground=True)["data"]) > 10_000
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert browser.evaluate("matchMedia('print and (prefers-color-scheme: dark)').matches")
    assert brightness(browser.evaluate(INK)) < 0.5


def test_a_page_with_faults_is_caught(browser: Browser, tmp_path: Path) -> None:
    """Without this control the tests above could pass because nothing is ever noticed."""
    page = tmp_path / "faulty.html"
    page.write_text(
        '<img src="missing.png"><figure><svg viewBox="0 0 9 9" width="0" height="0"></svg></figure>'
        '<script>console.error("one"); undefinedName</script>'
    )
    show(browser, page)
    found = " ".join(browser.complaints)
    assert "one" in found
    assert "undefinedName" in found
    assert "ERR_FILE_NOT_FOUND" in found
    assert browser.evaluate(SIZES) == [[0, 0, 0]]


def brightness(colour: str) -> float:
    parts = [float(part) for part in colour.strip("rgba()").split(",")[:3]]
    return sum(parts) / 3 / 255


TOUCHING = """[...document.querySelectorAll('section > p')].filter(text => {
    const above = text.previousElementSibling;
    return above && text.getBoundingClientRect().top - above.getBoundingClientRect().bottom < 8;
}).map(text => text.textContent)"""
CUT_OFF = """[...document.querySelectorAll('.scroll')].filter(
    box => box.scrollWidth > box.clientWidth
).map(box => box.ariaLabel)"""


@pytest.mark.parametrize("name", ["one", "unfinished"])
def test_text_keeps_its_distance_and_no_table_is_cut_off(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    show(browser, pages[name], width=1280)
    assert browser.evaluate(TOUCHING) == []
    assert browser.evaluate(CUT_OFF) == []
