"""The page at `/`, in a real headless Chromium (Debian's)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_fixtures import Gateway
from PIL import Image

pytestmark = [pytest.mark.triton_server, pytest.mark.slow]

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def page(gateway: Gateway) -> Iterator[Any]:
    """The page, loaded, with a model chosen; what the console says is kept."""
    if CHROMIUM is None:
        pytest.skip("no chromium (apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        # The test's own polling is an eval, which the page's policy forbids; the policy's header has a test of its own.
        tab = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
        tab.console_lines = []
        tab.on("console", lambda message: tab.console_lines.append(message.text))
        tab.on("pageerror", lambda error: tab.console_lines.append(f"error: {error}"))
        tab.goto(gateway.url)
        tab.wait_for_function("document.getElementById('model').options.length > 0")
        tab.click("summary")  # the parameters are folded away at first
        yield tab
        browser.close()


def ask(page: Any, text: str, model: str = "chain") -> None:
    page.select_option("#model", model)
    page.fill("#prompt", text)
    page.keyboard.press("Control+Enter")


def test_a_chat_streams_and_shows_its_speed(page: Any) -> None:
    page.fill("#max_tokens", "12")
    page.fill("#temperature", "0")
    ask(page, "What is the capital of France?", "smollm2")
    page.wait_for_function(
        "!document.getElementById('send').disabled && document.querySelectorAll('#messages li').length == 2"
    )
    answer = page.inner_text("#messages li.assistant")
    assert len(answer) > 5
    assert re.fullmatch(r"\d+ ms", page.inner_text("#ttft"))
    assert float(page.inner_text("#rate")) > 0
    assert 1 <= int(page.inner_text("#tokens")) <= 12


def test_the_engine_room_moves(page: Any) -> None:
    page.wait_for_function("/used.* of \\d+/.test(document.getElementById('blocks-text').textContent)")
    page.wait_for_function("document.getElementById('running').textContent === '0'")
    assert page.inner_text("#status") == "Connected"


def test_the_map_of_blocks_is_coloured_by_sequence(page: Any, gateway: Gateway) -> None:
    """Free, cached and two running sequences: four colours and the gaps between squares."""
    page.select_option("#model", "smollm2")
    body = {"model": "smollm2", "prompt": "z " * 300, "max_tokens": 1500, "stream": True, "ignore_eos": True}
    httpx.post(f"{gateway.url}/v1/completions", json={**body, "max_tokens": 1}, timeout=30)
    with (
        httpx.stream("POST", f"{gateway.url}/v1/completions", json=body, timeout=60) as first,
        httpx.stream(
            "POST", f"{gateway.url}/v1/completions", json={**body, "prompt": "y " * 300}, timeout=60
        ) as second,
    ):
        lines = first.iter_lines(), second.iter_lines()  # kept: httpx ends a stream with its iterator
        next(lines[0]), next(lines[1])
        two = "/used by 2 sequences/.test(document.getElementById('blocks-text').textContent)"
        page.wait_for_function(two, timeout=120_000)
        colours = page.evaluate(
            """() => {
                const canvas = document.getElementById('blocks');
                const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                const counts = {};
                for (let i = 0; i < pixels.length; i += 4) {
                    const key = pixels.slice(i, i + 4).join(' ');
                    if (pixels[i + 3] === 255) counts[key] = (counts[key] ?? 0) + 1;
                }
                return counts;
            }"""
        )
    areas = [colour for colour, count in colours.items() if count > 20]
    assert len(areas) >= 3  # free and one for each sequence; edges blend


def test_a_refusal_is_shown_as_text(page: Any) -> None:
    ask(page, "<img src=x onerror=alert(1)>", "chain")  # no chat template; and markup must stay text
    page.wait_for_selector("#messages li.error")
    assert "chat template" in page.inner_text("#messages li.error")
    assert page.query_selector("#messages img") is None


def test_escape_stops_an_answer(page: Any, gateway: Gateway) -> None:
    page.click("#clear")
    page.fill("#max_tokens", "2000")
    page.fill("#temperature", "1")
    ask(page, "Write a very long story.", "smollm2")
    page.wait_for_function("document.querySelector('#messages li.assistant')?.textContent.length > 20")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.getElementById('send').disabled")
    control = gateway.server.control("smollm2")
    page.wait_for_timeout(1500)
    assert control.ask("status")["live"] == 0


def test_presets_fill_the_parameters(page: Any) -> None:
    page.click("text=Creative")
    assert page.input_value("#temperature") == "1"
    assert page.input_value("#max_tokens") == "512"


def test_everything_has_a_name_and_can_be_reached_by_keyboard(page: Any) -> None:
    unnamed = page.evaluate(
        """[...document.querySelectorAll('input, select, textarea, button, canvas')].filter(
            (element) => !(element.labels?.length || element.textContent.trim() || element.getAttribute('aria-label')
                           || element.getAttribute('aria-labelledby'))).map((element) => element.id)"""
    )
    assert unnamed == []
    page.click("h1")
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"model", "key", "prompt", "send", "clear", "Creative"} <= reached


def test_nothing_comes_from_elsewhere_and_nothing_fails(page: Any, gateway: Gateway) -> None:
    html = httpx.get(gateway.url).text
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) == {"/page/app.js", "/page/style.css"}
    assert "default-src 'none'" in httpx.get(gateway.url).headers["content-security-policy"]
    failures = [line for line in page.console_lines if "error" in line.lower() and "status of 400" not in line]
    assert failures == []


def test_the_picture_shows_both_halves(page: Any, tmp_path: Path) -> None:
    """A screenshot with ink where chat and engine room are: an empty page, or one without styles, fails."""
    path = tmp_path / "page.png"
    page.screenshot(path=str(path))
    picture = Image.open(path).convert("RGB")
    assert picture.size == (1280, 900)
    for left, right in ((0, 768), (768, 1280)):
        colours = picture.crop((left, 80, right, 900)).getcolors(maxcolors=1 << 20)
        assert colours is not None
        assert len(colours) > 20
