"""The page at /, in Debian's Chromium without a screen, in races on real models.

The servers are those of tests/e2e/conftest.py.  Whatever the browser complains of (a breach of the content-security
policy, an exception, a file that isn't there) fails the test that it happened in, save what a test says it expects."""

import importlib.util
import pathlib
import shutil
import sys

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e" / "conftest.py")
e2e = importlib.util.module_from_spec(spec)
sys.modules["e2e_conftest"] = e2e
spec.loader.exec_module(e2e)

smol = e2e.smol
qwen = e2e.qwen
WIDE, NARROW = (1280, 900), (375, 812)


def open_browser(size):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        e2e.skip_or_fail("browser", "no chromium and chromedriver here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # --no-sandbox: root, as in CI, has no other choice; what is shown comes from our own server on this machine.
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                 "--no-proxy-server", "--disable-background-networking", "--lang=en-US"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(driver))
    resize(browser, *size)
    return browser


def resize(browser, width, height, scheme="light", motion="reduce"):
    """A viewport of exactly this size, windows having a least width of their own; without motion, so that what is scrolled
    to is there at once."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
        {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}]})


@pytest.fixture(scope="session")
def chromium():
    browser = open_browser(WIDE)
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium, request):
    """The browser in its first state.  Messages that hold one of the texts in `expected` are no failure."""
    chromium.get("about:blank")
    resize(chromium, *WIDE)
    chromium.get_log("browser")
    chromium.expected = []
    yield chromium
    messages = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] != "DEBUG"]
    unexpected = [m for m in messages if not any(text in m for text in chromium.expected)]
    assert not unexpected, "\n".join(unexpected)
