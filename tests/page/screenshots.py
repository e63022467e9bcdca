#!/usr/bin/env python3
"""The pictures of README.md, made anew: tests/page/screenshots.py [FOLDER] (default docs); with the environment of tests/page.

One race of the 0.5B model, the same each time by its seed: wide and light, wide and dark with one candidate opened, narrow."""

import pathlib
import sys

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from conftest import NARROW, WIDE, open_browser, resize
from e2e_conftest import QWEN, ROOT, serving
from test_page import Page

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs")
folder.mkdir(exist_ok=True)


def failed_with_tests(page):
    """Opens the first candidate that shows why it failed."""
    page["grid"].send_keys(Keys.HOME, Keys.ENTER)
    while not (page.text("dialog-title").endswith("failed") and page["dialog"].find_elements(By.TAG_NAME, "tbody")):
        page["next"].click()


with serving("--engine.context", "4096", model=QWEN) as server:
    browser = open_browser(WIDE)
    try:
        page = Page(browser, server)
        Select(page["example"]).select_by_visible_text("Roman numerals (asserts)")
        page.fill("candidates", 30)
        page["more"].find_element(By.TAG_NAME, "summary").click()
        page.fill("tokens", 256)
        page.fill("seed", 5)
        page["more"].find_element(By.TAG_NAME, "summary").click()
        page["first"].click()
        page.start()
        page.until(lambda: page.counts()["passed"] >= 3 and page.counts()["failed"] >= 3, "verdicts", 600)
        browser.execute_script("scrollTo(0, 0)")
        browser.save_screenshot(str(folder / "page-light.png"))
        page.ended()
        resize(browser, *WIDE, scheme="dark")
        failed_with_tests(page)
        browser.save_screenshot(str(folder / "page-dark.png"))
        page["close"].click()
        resize(browser, *NARROW)
        page["race"].location_once_scrolled_into_view
        browser.execute_script("document.getElementById('race').scrollIntoView({ behavior: 'instant' })")
        page.until(lambda: page["grid"].size["width"] < NARROW[0], "the narrow grid", 5)
        browser.save_screenshot(str(folder / "page-narrow.png"))
    finally:
        browser.quit()
