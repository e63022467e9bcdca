"""Races started, watched and looked into as a person does it."""

import signal
import time

import httpx
import pytest
from selenium.common.exceptions import NoSuchElementException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from conftest import NARROW, WIDE, resize
from e2e_conftest import SMOL, Server, need_model, serving

EASY = ("Write a Python function double(n) that returns 2 * n. Answer with the function only.",
        "assert double(2) == 4\nassert double(-1) == -2")
# No code fulfils both.
IMPOSSIBLE = (EASY[0], "assert double(2) == 4\nassert double(2) == 5")


class Page:
    """What is on the page, by its words and roles."""

    def __init__(self, browser, server):
        self.browser = browser
        browser.get(f"{server.url}/")
        self.until(lambda: "sandbox level" in self.text("server"), "the server's name")

    def __getitem__(self, name):
        return self.browser.find_element(By.ID, name)

    def text(self, name):
        return self[name].text

    def until(self, ready, what, seconds=180):
        WebDriverWait(self.browser, seconds, 0.1, ignored_exceptions=[NoSuchElementException]).until(lambda _: ready(), what)

    def fill(self, name, value):
        self[name].clear()
        self[name].send_keys(str(value))

    def task(self, prompt, tests, candidates=8, temperature=0.8, tokens=96, seed=1):
        self.fill("prompt", prompt)
        self.fill("tests", tests)
        self.fill("candidates", candidates)
        self.fill("temperature", temperature)
        if not self["more"].get_attribute("open"):
            self["more"].find_element(By.TAG_NAME, "summary").click()
        self.fill("tokens", tokens)
        self.fill("seed", seed)
        Select(self["format"]).select_by_visible_text("recognize it")
        self.fill("entry", "")
        return self

    def start(self):
        self["start"].click()
        return self

    def ended(self):
        self.until(lambda: self["start"].is_enabled() and not self["cancel"].is_enabled(), "the race's end")
        return self

    def counts(self):
        """Candidates by state, as the legend says."""
        rows = self.browser.execute_script("""
            return [...document.querySelectorAll("#legend li")].map((row) => [row.dataset.state, row.querySelector("b").textContent]);""")
        return {state: int(n.replace(",", "")) for state, n in rows}

    def cell(self):
        """What a screen reader says of the cell under the cursor."""
        return self["cell"].get_attribute("textContent")

    def press(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()
        return self

    def width(self):
        return self.browser.execute_script("return document.documentElement.scrollWidth")


@pytest.fixture
def page(browser, qwen):
    return Page(browser, qwen)


# ---- races ----

def test_a_win(page):
    page.task(*EASY).start().ended()
    assert "passed all its tests" in page.text("status") and not page["alert"].is_displayed()
    assert page["winner"].is_displayed() and page.text("winner-title") == "Winner"
    code = page["winner-code"].get_attribute("textContent")
    assert code.count("def double(") == 1 and "return" in code
    scope = {}
    exec(code, scope)  # as it is shown: with its line ends, without the line numbers
    assert scope["double"](21) == 42
    assert page["winner-code"].find_element(By.CLASS_NAME, "t-keyword").text == "def"
    counts = page.counts()
    assert counts["passed"] >= 1 and counts["decoding"] == counts["verifying"] == 0 and sum(counts.values()) == 8
    assert page.browser.switch_to.active_element.get_attribute("id") == "grid", "the button that was pressed is gone meanwhile"
    assert page.text("f-first").endswith(" s") and float(page.text("f-first")[:-2]) > 0
    assert page.text("f-judged").split()[0] != "0" and page.text("f-rows")[0].isdigit() and page.text("f-speed")[0].isdigit()
    assert ": passed, 2 of 2 tests" in page.cell()
    hosts = page.browser.execute_script("return [...new Set(performance.getEntriesByType('resource').map((one) => new URL(one.name).origin))]")
    assert hosts == [page.browser.execute_script("return location.origin")], "nothing comes from elsewhere"


def test_at_temperature_0_there_is_one(page):
    page.task(*EASY, candidates=8, temperature=0).start().ended()
    assert sum(page.counts().values()) == 1 and page.text("f-judged") == "1 of 1"


def test_states_are_followed(page):
    """All of them are judged; what the legend counts always adds up."""
    page.task(*EASY, candidates=12, tokens=64)
    page["first"].click()
    page.start()
    seen = set()

    def over():
        counts = page.counts()
        assert sum(counts.values()) == 12, counts
        seen.update(state for state, n in counts.items() if n)
        return page["start"].is_enabled()
    page.until(over, "the race's end")
    assert {"waiting", "decoding", "passed"} <= seen
    counts = page.counts()
    assert counts["waiting"] == counts["cancelled"] == 0 and counts["passed"] + counts["failed"] == 12
    assert page.text("f-judged") == "12 of 12"


def test_none_passes_and_why(page):
    page.task(*IMPOSSIBLE, candidates=3).start().ended()
    assert "No candidate passed: 3 were judged." in page.text("alert")
    assert page["alert"].get_attribute("role") == "alert"
    assert page.text("winner-title") == "Closest" and "1 of 2 tests" in page.text("winner-facts")
    assert page.counts()["failed"] == 3
    canvas = page["grid"].find_element(By.TAG_NAME, "canvas")
    middle = (canvas.size["width"] // 2, canvas.size["height"] // 2)
    ActionChains(page.browser).move_to_element_with_offset(canvas, 12 - middle[0], 12 - middle[1]).click().perform()
    assert page["dialog"].is_displayed() and not page["previous"].is_enabled()
    for number in range(3):
        assert page.text("dialog-title") == f"Candidate {number} failed"
        cells = [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
                 for row in page["dialog"].find_elements(By.CSS_SELECTOR, "tbody tr")]
        if cells:
            break
        page["next"].click()
    assert [row[1] for row in cells] == ["✓ passed", "✗ failed"], cells
    assert cells[1][2:4] == ["4", "5"] and "AssertionError" in cells[1][4], cells
    assert "def double" in page["dialog"].text
    page["close"].click()
    assert not page["dialog"].is_displayed()


def test_values_may_stay_hidden(page):
    page.task(EASY[0], "assert double(2) == 4711", candidates=1)
    Select(page["feedback"]).select_by_visible_text("names only")
    page.start().ended()
    page["grid"].send_keys(Keys.ENTER)
    assert page.text("dialog-title") == "Candidate 0 failed" and "4711" not in page["dialog"].text
    assert [cell.text for cell in page["dialog"].find_elements(By.TAG_NAME, "th")] in ([], ["Test", "Result"],
                                                                                      ["Test", "Result", "Error"])


def test_cancel(page, qwen):
    page.task("Count from 1 to 10000 in words.", "assert f() == 1", candidates=64, tokens=2000).start()
    page.until(lambda: page.counts()["decoding"] > 0, "decoding")
    page["cancel"].click()
    page.ended()
    assert page.text("status").startswith("Cancelled") and not page["alert"].is_displayed()
    counts = page.counts()
    assert counts["cancelled"] > 0 and counts["decoding"] == counts["verifying"] == 0
    qwen.assert_quiet()


def test_leaving_the_page_stops_the_race(page, qwen):
    page.task("Count from 1 to 10000 in words.", "assert f() == 1", candidates=64, tokens=2000).start()
    page.until(lambda: page.counts()["decoding"] > 0, "decoding")
    page.browser.get("about:blank")
    qwen.assert_quiet()


# What each example asks for, right and wrong in one place.
SOLUTIONS = [
    ("""
def rotate(items, k):
    k = k % len(items) if items else 0
    return items[-k:] + items[:-k]
""", "% len(items)"),
    ("""
def to_roman(n):
    out = ""
    for value, letters in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), "M CM D CD C XC L XL X IX V IV I".split()):
        out += n // value * letters
        n %= value
    return out
""", "CD"),
    ("""
n = int(input())
numbers = sorted(map(int, input().split()))
print(max((b - a for a, b in zip(numbers, numbers[1:])), default=0))
""", "sorted"),
    ("""
import re
from collections import Counter
def count_words(text):
    return dict(Counter(re.findall("[a-z]+", text.lower())))
""", ".lower()"),
    ("""
def depth(text):
    now = most = 0
    for c in text:
        now += (c == "(") - (c == ")")
        most = max(most, now)
        if now < 0:
            return -1
    return -1 if now else most
""", "-1 if now"),
    ("""
import re
def calculate(text):
    tokens = re.findall(r"\\d+|[-+*/()]", text)
    def factor():
        token = tokens.pop(0)
        if token == "-":
            return -factor()
        if token == "(":
            value = total()
            tokens.pop(0)
            return value
        return int(token)
    def product():
        value = factor()
        while tokens and tokens[0] in "*/":
            if tokens.pop(0) == "*":
                value *= factor()
            else:
                value = int(value / factor())
        return value
    def total():
        value = product()
        while tokens and tokens[0] in "+-":
            value += product() if tokens.pop(0) == "+" else -product()
        return value
    return total()
""", "int(value / factor())"),
]


def test_examples(page, qwen):
    """Each example's tests are of the format that it says, pass what is right and fail what isn't."""
    examples = page.browser.execute_async_script("import('/web/examples.js').then((file) => arguments[0](file.EXAMPLES));")
    assert [option.text for option in Select(page["example"]).options[1:]] == [one["name"] for one in examples]
    assert len(examples) == len(SOLUTIONS) and len({one["format"] for one in examples}) >= 5
    for example, (right, vital) in zip(examples, SOLUTIONS):
        assert vital in right
        wrong = {"% len(items)": "", "CD": "DC", "sorted": "list", ".lower()": "", "-1 if now": "0 if now",
                 "int(value / factor())": "value // factor()"}[vital]
        spec = {"tests": example["tests"], "format": example["format"], "codes": [right, right.replace(vital, wrong, 1)]}
        if example["entry"]:
            spec["entry_point"] = example["entry"]
        answer = qwen.post("/v1/verify", spec)
        assert answer.status_code == 200, answer.text
        verdicts = [one["verdict"] for one in answer.json()["results"]]
        assert verdicts[0] == "passed" and verdicts[1] in ("failed", "crashed"), (example["name"], answer.json())


@pytest.mark.parametrize("name", ["program", "pytest"])
def test_an_example_is_raced(page, name):
    option = next(one for one in Select(page["example"]).options if name in one.text)
    Select(page["example"]).select_by_visible_text(option.text)
    page.fill("candidates", 2)
    page["more"].find_element(By.TAG_NAME, "summary").click()
    page.fill("tokens", 80)
    page.start().ended()
    counts = page.counts()
    assert counts["passed"] + counts["failed"] >= 1 and counts["broken"] == 0, page.text("alert")


# ---- what can go wrong ----

def test_a_key_is_asked_for_and_kept_in_the_tab(browser, tmp_path):
    need_model(SMOL)
    keys = tmp_path / "keys"
    keys.write_text("ann secret-of-ann\n")
    browser.expected = ["401"]
    with serving("--api-key-file", str(keys), "--server.open_metrics=true", "--engine.context", "1024", model=SMOL) as server:
        page = Page(browser, server)
        page.until(lambda: page["key"].is_displayed(), "the field for the key")
        page.task("x", "assert f()", candidates=2, tokens=4).start().ended()
        assert "asks for an API key" in page.text("alert")
        assert browser.switch_to.active_element.get_attribute("id") == "key"
        page.fill("key", "secret-of-bob")
        page.start().ended()
        assert "doesn't know this API key" in page.text("alert")
        page.fill("key", "secret-of-ann")
        page.start().ended()
        assert "No candidate passed" in page.text("alert")
        assert "secret-of-ann" not in browser.current_url
        browser.refresh()
        page.until(lambda: page["key"].get_attribute("value") == "secret-of-ann", "the key again")
        assert browser.execute_script("return [localStorage.length, document.cookie]") == [0, ""]
        page.task("x", "assert f()", candidates=64, tokens=900).start()
        page.until(lambda: page.counts()["decoding"] > 0, "decoding")
        page["cancel"].click()  # needs the key, too
        page.ended()
        server.assert_quiet()


def test_busy_refused_and_lost(browser):
    need_model(SMOL)
    browser.expected = ["429", "400", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION"]
    with serving("--server.max_races", "1", "--server.max_candidates", "64", "--engine.context", "2048", model=SMOL) as server:
        page = Page(browser, server)
        long = {"prompt": "One two three", "max_tokens": 1900, "n": 1, "ignore_eos": True, "stream": True}
        with httpx.Client(timeout=60) as other, other.stream("POST", f"{server.url}/v1/completions", json=long) as response:
            answer = response.iter_text()
            next(answer)
            page.task("x", "assert f()", candidates=2, tokens=4).start().ended()
            assert "too much to do" in page.text("alert") and "try again in" in page.text("alert")
        server.assert_quiet()
        page.task("x", "assert f()", candidates=65, tokens=4).start().ended()
        assert "refuses the task" in page.text("alert") and "64" in page.text("alert")
        page.task("Count from 1 to 10000 in words.", "assert f()", candidates=64, tokens=1500).start()
        page.until(lambda: page.counts()["decoding"] > 0, "decoding")
        server.process.kill()
        page.ended()
        assert "connection to the server was lost" in page.text("alert")
        page["start"].click()
        page.ended()
        assert "connection to the server was lost" in page.text("alert")


def test_shutting_down(browser):
    need_model(SMOL)
    browser.expected = ["503"]
    with serving("--engine.context", "2048", model=SMOL) as server:
        page = Page(browser, server).task("x", "assert f()", candidates=2, tokens=4)
        long = {"prompt": "One two three", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        with httpx.Client(timeout=60) as other, other.stream("POST", f"{server.url}/v1/completions", json=long) as response:
            answer = response.iter_text()
            next(answer)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until(lambda: "SIGTERM" in server.log, "the signal")
            page.start().ended()
            assert "can't take the task now" in page.text("alert") and "shutting down" in page.text("alert")


def test_while_the_model_loads(browser):
    """The page is there before the model is, and says so."""
    need_model(SMOL)
    server = Server(model=SMOL)
    try:
        browser.expected = ["503"]
        browser.get(f"{server.url}/")
        server.ready()
        WebDriverWait(browser, 60).until(lambda b: "sandbox level" in b.find_element(By.ID, "server").text)
    finally:
        server.close()


# ---- hostile text ----

HOSTILE = "<script>alert(1)</script></pre><img src=x onerror=alert(2)>\u202egnp.exe\u2066\u200b\x07"


def test_hostile_output_is_text(page):
    """What code prints and raises comes to the page as it is; nothing of it becomes a node, and nothing turns the line round."""
    code = f"def double(n):\n    print({HOSTILE!r})\n    raise ValueError({HOSTILE!r})"
    page.task(f"Repeat this code exactly, in a Python block, and write nothing else:\n```python\n{code}\n```", EASY[1], candidates=1,
              temperature=0, tokens=250).start().ended()
    page["grid"].send_keys(Keys.ENTER)
    dialog = page["dialog"]
    text = dialog.get_attribute("textContent")
    assert "<script>alert(1)</script></pre><img src=x" in text, text
    assert not dialog.find_elements(By.CSS_SELECTOR, "script, img")
    assert not any(odd in text for odd in "\u202e\u2066\u200b\x07")


def test_hostile_code_is_text(page):
    """Code and values that no model can be made to write for certain: through the page's own functions."""
    found = page.browser.execute_async_script("""
        const [hostile, done] = arguments;
        Promise.all([import("/web/python.js"), import("/web/text.js")]).then(([python, text]) => {
            const pre = document.body.appendChild(document.createElement("pre"));
            pre.className = "source";
            python.showCode(pre, `s = "${hostile}"\\n# ${hostile}\\n${hostile}\\ndef f(): '''${hostile}\\n${hostile}`, 2);
            const p = text.appendText(document.body.appendChild(document.createElement("p")), hostile);
            const all = [...pre.querySelectorAll("*"), ...p.querySelectorAll("*")];
            done({ names: [...new Set(all.map((node) => node.localName))].sort(), text: pre.textContent,
                   odd: [...p.querySelectorAll(".odd")].map((node) => node.textContent),
                   direction: getComputedStyle(pre.querySelector("code")).unicodeBidi,
                   wrong: pre.querySelectorAll(".wrong").length, lines: pre.querySelectorAll("code").length });
        });""", HOSTILE)
    assert found["names"] == ["code", "span"] and found["odd"] == ["U+202E", "U+2066", "U+200B", "U+0007"]
    assert found["text"].count("<script>alert(1)</script></pre><img src=x onerror=alert(2)>") == 5
    assert not any(odd in found["text"] for odd in "\u202e\u2066\u200b\x07")
    assert (found["lines"], found["wrong"], found["direction"]) == (5, 1, "isolate")


def test_the_policy_holds(page):
    """What the page doesn't do, it can't be made to do either."""
    page.browser.expected = ["Content Security Policy"]
    page.browser.execute_script("""
        window.broken = [];
        addEventListener("securitypolicyviolation", (event) => broken.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.evil = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:1/x.png";
        document.body.append(image);
        const style = document.createElement("style");
        style.textContent = "body { display: none }";
        document.head.append(style);""")
    page.until(lambda: len(page.browser.execute_script("return broken")) >= 3, "three breaches", 10)
    assert page.browser.execute_script("return window.evil") is None
    assert page["task"].is_displayed()


# ---- keyboard, address, width, colours ----

def test_by_keyboard_alone(page):
    order = []
    while len(order) < 30 and "grid" not in order:
        page.press(Keys.TAB)
        focus = page.browser.switch_to.active_element
        order.append(focus.get_attribute("id") or focus.tag_name)
        if order[-1] == "summary":
            page.press(Keys.ENTER)
    assert order == ["example", "prompt", "tests", "candidates", "temperature", "first", "summary", "format", "entry", "tokens", "seed",
                     "timeout", "feedback", "start", "grid"]
    page.task(*IMPOSSIBLE, candidates=5, tokens=64)
    page["prompt"].send_keys(Keys.CONTROL, Keys.ENTER)
    page.until(lambda: not page["start"].is_enabled(), "the start")
    page.ended()
    ActionChains(page.browser).key_up(Keys.CONTROL).perform()
    page.browser.execute_script("document.getElementById('grid').focus()")
    assert page["grid"].get_attribute("role") == "listbox" and page["grid"].get_attribute("aria-activedescendant") == "cell"
    page.press(Keys.HOME)
    page.until(lambda: page.cell().startswith("Candidate 0:"), "the first cell", 5)
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.until(lambda: page.cell().startswith("Candidate 2:"), "the third cell", 5)
    assert page["cell"].get_attribute("aria-posinset") == "3" and page["cell"].get_attribute("aria-setsize") == "5"
    page.press(Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    page.until(lambda: page.cell().startswith("Candidate 3:"), "the last cell but one", 5)
    page.press(Keys.ENTER)
    page.until(lambda: page["dialog"].is_displayed(), "the dialog", 5)
    assert page.text("dialog-title").startswith("Candidate 3 ")
    inside = page.browser.execute_script("return document.getElementById('dialog').contains(document.activeElement)")
    assert inside
    page.press(Keys.ESCAPE)
    page.until(lambda: not page["dialog"].is_displayed(), "the dialog's end", 5)
    assert page.browser.switch_to.active_element.get_attribute("id") == "grid"


def test_the_address_holds_the_task(page, qwen):
    page.task(*EASY, candidates=1, temperature=0.3, tokens=40, seed=9).start().ended()
    address = page.browser.current_url
    page.browser.get("about:blank")
    page.browser.get(address)
    page.until(lambda: page["prompt"].get_attribute("value") == EASY[0], "the task again", 10)
    values = {name: page[name].get_attribute("value") for name in ("tests", "candidates", "temperature", "tokens", "seed", "entry")}
    assert values == {"tests": EASY[1], "candidates": "1", "temperature": "0.3", "tokens": "40", "seed": "9", "entry": ""}
    time.sleep(0.5)
    assert page.text("status") == "Nothing has run yet.", "an address only fills in"
    qwen.assert_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_light_and_dark(page, scheme):
    resize(page.browser, *NARROW, scheme=scheme)
    page.task(*EASY, candidates=40, tokens=64).start().ended()
    assert page["winner"].is_displayed() and page.width() == NARROW[0]
    page["grid"].send_keys(Keys.ENTER)
    assert page["dialog"].is_displayed() and page.width() == NARROW[0]
    assert page["dialog"].size["width"] <= NARROW[0]
    page["close"].click()
    # Every text has the contrast that WCAG asks for (4.5 : 1), against what is behind it.
    worst = page.browser.execute_script("""
        const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (node) => {
            for (let at = node; at; at = at.parentElement) {
                const colour = channels(getComputedStyle(at).backgroundColor);
                if (colour.length < 4 || colour[3] > 0) return colour;
            }
        };
        let worst = [99, ""];
        for (const node of document.querySelectorAll("body *:not(option):not(:disabled)")) {
            const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
            if (!own || !node.checkVisibility()) continue;
            const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < worst[0]) worst = [ratio, node.outerHTML.slice(0, 100)];
        }
        return worst;""")
    assert worst[0] >= 4.5, worst
    dark = page.browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(int(c) for c in dark[4:-1].split(",")) < 200) == (scheme == "dark")


def test_ten_thousand_cells(page):
    """The grid holds them, follows them and fits them in at 375 pixels."""
    resize(page.browser, *NARROW)
    page.task("Count from 1 to 10000 in words.", "assert f() == 1", candidates=10000, tokens=8).start()
    page.until(lambda: page.counts()["failed"] >= 20, "verdicts")
    assert sum(page.counts().values()) == 10000 and page.width() == NARROW[0]
    page["grid"].send_keys(Keys.END)
    page.until(lambda: page.cell().startswith("Candidate 9999:"), "the last cell", 10)
    page["cancel"].click()
    page.ended()
    resize(page.browser, *WIDE)
    page.until(lambda: page.browser.execute_script("return document.querySelector('#grid canvas').clientWidth") > 600, "the wide grid", 5)
