"""`scripts/screenshots`: the page with a chat and two other streams running, and the report of a short load test."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import assets
import environment
from PIL import Image
from progress import Progress
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main as trtdecode
from trtdecode.server.launch import TritonServer
from trtdecode.server.ports import free_ports

IMAGES = environment.ROOT / "docs" / "images"
QUESTION = "What is the capital of France? Answer in one sentence."
POOL = 'parameters { key: "kv_cache_bytes" value { string_value: "256MiB" } }'


def main() -> int:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("screenshots: no chromium (apt-get install chromium)", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trtdecode-screenshots-") as folder:
        repository = Path(folder) / "repository"
        gguf = assets.ensure_gguf(Progress(environment.LOG_FILE))
        import_checkpoint(gguf, repository / assets.MODEL_NAME, precisions=("int8",))
        (repository / assets.MODEL_NAME / "config.pbtxt").write_text(f'backend: "trtdecode"\n{POOL}\n')
        with TritonServer(repository) as server, _gateway(repository, server) as url:
            report = Path(folder) / "report.html"
            addresses = ["--grpc", server.grpc_address, "--metrics", f"http://{server.metrics_address}/metrics"]
            traffic = ["--concurrency", "1,2,4,8", "--requests", "12", "--output-tokens", "24", "--prompt-words", "32"]
            status = trtdecode(
                ["loadtest", assets.MODEL_NAME, *addresses, *traffic, "--html", str(report), "--slo", "error_rate=0%"]
            )
            if status:
                return status
            _take(chromium, url, report)
    return 0


@contextlib.contextmanager
def _gateway(repository: Path, server: TritonServer) -> Iterator[str]:
    port = free_ports().http
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-c", "from trtdecode.cli import main; main()", "gateway", str(repository)]
    command += ["--triton", server.grpc_address, "--metrics", f"http://{server.metrics_address}/metrics"]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/health").close()
                    break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()


def _take(chromium: str, url: str, report: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1200, "height": 760}, bypass_csp=True)
        page.goto(url)
        page.wait_for_function("document.getElementById('model').options.length > 0")
        with _busy(url):
            page.wait_for_function("/by 2 sequences/.test(document.getElementById('blocks-text').textContent)")
            page.wait_for_timeout(6000)  # so that the curve of tokens/s has a shape
            page.fill("#prompt", QUESTION)
            page.keyboard.press("Control+Enter")
            page.wait_for_function("document.querySelectorAll('#messages li').length == 2")
            page.wait_for_function("!document.getElementById('send').disabled")
            page.wait_for_timeout(700)
            _save(page.screenshot(), "page.png")
        page.set_viewport_size({"width": 1200, "height": 1150})
        page.goto(report.as_uri())
        page.wait_for_function("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        _save(page.screenshot(), "loadtest.png")
        browser.close()


@contextlib.contextmanager
def _busy(url: str) -> Iterator[None]:
    """Two long streams beside the chat: their blocks have colours of their own."""
    import json

    stop = threading.Event()

    def ask(prompt: str) -> None:
        body = {"model": assets.MODEL_NAME, "prompt": prompt, "max_tokens": 1800, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            while not stop.is_set() and response.readline():
                pass

    threads = [threading.Thread(target=ask, args=(f"{word} " * 400,)) for word in ("once", "blue")]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _save(png: bytes, name: str) -> None:
    """With a palette: a third of the size, and nobody sees it."""
    picture: Any = Image.open(io.BytesIO(png)).convert("RGB").quantize(128)
    picture.save(IMAGES / name, optimize=True)
    print(f"{IMAGES / name}: {(IMAGES / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    sys.exit(main())
