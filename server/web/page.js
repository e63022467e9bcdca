// The page: form in, race out.
import { askReady, Failure, Race, wantsKey } from "./client.js";
import { EXAMPLES } from "./examples.js";
import { drawCell, Grid, readColours, STATES } from "./grid.js";
import { showCode } from "./python.js";
import { appendText, element, shortened } from "./text.js";

const KEY = "firstpass-key"; // in sessionStorage: gone with the tab
const SAY_EVERY_MS = 2000;   // the status, for who has it read out
const SPEED_OVER_S = 3;
const VALUE_MOST = 600;      // characters of a value in a table
const $ = (id) => document.getElementById(id);
const number = (n, digits = 0) => n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const plural = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

const VERDICTS = {
  passed: "passed", failed: "failed", timeout: "ran out of time", memory: "ran out of memory", crashed: "crashed",
  output_limit: "wrote too much", forged: "tried to forge its result", broken: "couldn't be judged: the sandbox failed",
};
const WORDS = {
  waiting: "waiting", decoding: "decoding", verifying: "being judged", passed: "passed", failed: "failed", cancelled: "stopped",
  broken: "not judged",
};

let server = null;  // what /ready said
let race = null;    // the one that runs
let details = new Map();
let view = null;    // figures of the race shown
let shown = -1;     // the candidate in the dialog

const grid = new Grid($("grid"), $("line"), describe, openCandidate);

// ---- the task, and the address that holds it ----

const FIELDS = ["prompt", "tests", "candidates", "temperature", "format", "entry", "tokens", "seed", "timeout", "feedback"];

function writeAddress() {
  const task = new URLSearchParams();
  for (const id of FIELDS) if ($(id).value !== "") task.set(id, $(id).value);
  if (!$("first").checked) task.set("all", "1");
  history.replaceState(null, "", `#${task}`);
}

function readAddress() {
  const task = new URLSearchParams(location.hash.slice(1));
  if (!task.has("prompt")) return false;
  for (const id of FIELDS) {
    const field = $(id), value = task.get(id);
    if (value !== null) field.value = value;
    else if (id !== "feedback") field.value = field.defaultValue ?? "";
    if (field.tagName === "SELECT" && field.selectedIndex < 0) field.selectedIndex = 0;
  }
  $("first").checked = !task.has("all");
  return true;
}

function takeExample(example) {
  $("prompt").value = example.prompt;
  $("tests").value = example.tests;
  $("format").value = example.format;
  $("entry").value = example.entry;
  $("candidates").value = example.candidates;
}

function requestOf() {
  const prompt = $("prompt").value;
  const firstpass = {
    tests: $("tests").value,
    max_candidates: Number($("candidates").value),
    return: $("first").checked ? "first" : "best",
    on_fail: "error",
    score: true,
    progress: "candidates",
    candidates: "full",
    feedback: $("feedback").value,
  };
  // JSON tests are sent as JSON, so that their format can be recognized.
  if (/^\s*[[{]/.test(firstpass.tests)) {
    try {
      firstpass.tests = JSON.parse(firstpass.tests);
    } catch {
      // Python that begins with a bracket.
    }
  }
  if ($("format").value) firstpass.format = $("format").value;
  if ($("entry").value.trim()) firstpass.entry_point = $("entry").value.trim();
  if ($("timeout").value) firstpass.timeout_s = Number($("timeout").value);
  const body = { temperature: Number($("temperature").value), max_tokens: Number($("tokens").value), stream: true, firstpass };
  if ($("seed").value) body.seed = Number($("seed").value);
  if (server?.model) body.model = server.model;
  if (server && server.ready && !server.chat) return ["v1/completions", { ...body, prompt }];
  return ["v1/chat/completions", { ...body, messages: [{ role: "user", content: prompt }] }];
}

// ---- the server ----

async function meetServer() {
  server = await askReady();
  if (!server) {
    $("server").textContent = "The server doesn't answer.";
  } else if (!server.ready) {
    $("server").textContent = server.status === "loading" ? "The model is loading …" : `The server is ${server.status}.`;
  } else {
    $("server").textContent = `${server.model}, sandbox level ${server.sandbox.level}`;
    $("key").value = sessionStorage.getItem(KEY) ?? "";
    if ($("key").value || await wantsKey("")) $("key-row").hidden = false;
    return;
  }
  setTimeout(meetServer, 2000);
}

// ---- figures ----

function speedOf() {
  const { samples } = view;
  const last = samples.at(-1);
  const first = samples.find(([seconds]) => last && seconds >= last[0] - SPEED_OVER_S);
  return last && first && last[0] - first[0] > 0.2 ? (last[1] - first[1]) / (last[0] - first[0]) : NaN;
}

function figure(id, value, more = "") {
  $(id).replaceChildren(value, ...(more ? [" ", element("small", {}, more)] : []));
}

function showFigures() {
  const { counts, tokens, rows } = view;
  figure("f-judged", number(counts.verified ?? 0), `of ${number(grid.n)}`);
  if (view.firstPass === null) figure("f-first", "–");
  else figure("f-first", `${number(view.firstPass, view.firstPass < 10 ? 2 : 1)} s`);
  const speed = view.done ? tokens / view.seconds : speedOf();
  figure("f-speed", Number.isFinite(speed) ? number(speed, speed < 10 ? 1 : 0) : "–", view.done ? "on average" : "");
  const saved = tokens - rows;
  if (!tokens || !rows) figure("f-rows", "–");
  else figure("f-rows", number(Math.max(0, saved)), `of ${number(tokens)} (${number(Math.max(0, 100 * saved / tokens))} %)`);
  for (const [i, state] of STATES.entries()) {
    const row = legend.get(state);
    row.count.textContent = number(grid.counts[i]);
    row.item.hidden = state === "broken" && !grid.counts[i];
  }
}

const legend = new Map();
function makeLegend() {
  for (const state of STATES) {
    const icon = element("canvas", { width: "36", height: "36", "aria-hidden": "true" });
    const count = element("b", {}, "0");
    const item = element("li", { "data-state": state }, icon, `${WORDS[state]} `, count);
    $("legend").append(item);
    legend.set(state, { icon, count, item });
  }
  legend.get("broken").item.hidden = true;
  const draw = () => {
    const colours = readColours();
    for (const [state, { icon }] of legend) {
      const context = icon.getContext("2d");
      context.clearRect(0, 0, 36, 36);
      drawCell(context, colours, state, 2, 2, 32, 0.6);
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

let saidAt = 0;
function say(text, now = true) {
  if (!now && performance.now() - saidAt < SAY_EVERY_MS) return;
  saidAt = performance.now();
  $("status").textContent = text;
}

function complain(text) {
  $("alert").textContent = text;
  $("alert").hidden = !text;
}

// ---- the race ----

function takeNews(news) {
  // At temperature 0 all would be equal: the server tries one.
  if (news.counts && news.counts.max_candidates !== grid.n) grid.reset(news.counts.max_candidates);
  for (const detail of news.judged ?? []) {
    if (detail.code) delete detail.text; // the same again, with words around it
    details.set(detail.candidate, detail);
  }
  for (const [i, state, tokens] of news.candidates ?? []) {
    grid.most = Math.max(grid.most, tokens);
    grid.set(i, state in WORDS ? state : "failed", tokens);
  }
  if (news.counts) view.counts = news.counts;
  if (news.seconds !== undefined) {
    view.tokens = news.tokens.generated;
    view.rows = news.tokens.rows;
    view.seconds = news.seconds;
    view.samples.push([news.seconds, view.tokens]);
    if (view.samples.length > 100) view.samples.shift();
    if (view.firstPass === null && view.counts.passed) view.firstPass = news.seconds;
  }
  if (news.timings) { // the last word
    view.tokens = news.tokens.winner + news.tokens.losers;
    view.rows = news.tokens.rows;
    view.seconds = news.timings.total_s;
    if (news.timings.first_pass_s !== null) view.firstPass = news.timings.first_pass_s;
    view.result = news;
  }
  showFigures();
  if ($("dialog").open && news.judged?.some(({ candidate }) => candidate === shown)) showCandidate(shown);
  const { verified = 0, passed = 0 } = view.counts;
  say(`Racing: ${number(verified)} of ${plural(grid.n, "candidate")} judged, ${passed ? `${number(passed)} passed` : "none passed yet"}.`,
    false);
}

function showCandidateCode(title, facts, code, lost) {
  $("winner").hidden = false;
  $("winner").classList.toggle("lost", lost);
  $("winner-title").textContent = title;
  $("winner-facts").textContent = facts;
  $("winner-code").setAttribute("aria-label", lost ? "Code of the closest candidate" : "Code of the winner");
  showCode($("winner-code"), code);
  $("copy").hidden = !navigator.clipboard;
  $("copy").onclick = async () => {
    await navigator.clipboard.writeText(code);
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  };
}

function closest() {
  let best = null;
  for (const detail of details.values()) {
    if (detail.verdict === "broken" || !detail.code) continue;
    if (!best || detail.tests_passed > best.tests_passed) best = detail;
  }
  return best;
}

function showWinner() {
  const { winner, seed } = view.result;
  const i = winner.candidate;
  grid.setWinner(i);
  const others = view.counts.passed > 1 ? `; ${plural(view.counts.passed, "candidate")} passed in all` : "";
  say(`Candidate ${number(i)} passed all its tests after ${number(view.firstPass, 2)} s${others}.`);
  showCandidateCode("Winner", `Candidate ${i} passed ${plural(winner.tests_passed, "test")}. Seed ${seed} gives it again.`,
    winner.code, false);
}

function showFailure(failure) {
  const judged = view.counts.verified ?? 0;
  const best = closest();
  switch (failure.kind) {
    case "none_passed":
      complain(`No candidate passed: ${plural(judged, "was", "were")} judged. Open one to see why it failed; more candidates, another `
        + "temperature or a clearer prompt may help.");
      break;
    case "cancelled":
      break;
    case "key":
      complain($("key").value ? "The server doesn't know this API key." : "This server asks for an API key. Enter it above the button and start again.");
      $("key-row").hidden = false;
      $("key").focus();
      break;
    case "busy":
      complain(`The server has too much to do: ${failure.message}`
        + (failure.retryAfter && !failure.message.includes("try again") ? `; try again in ${failure.retryAfter} s` : ""));
      break;
    case "unavailable":
      complain(`The server can't take the task now: ${failure.message}`);
      break;
    case "deadline":
      complain(`Time is up: ${failure.message}`);
      break;
    case "input":
      complain(`The server refuses the task: ${failure.message}`);
      break;
    case "network":
      complain(failure.message);
      break;
    default:
      complain(`The server failed: ${failure.message}`);
  }
  say(failure.kind === "cancelled" ? `Cancelled after ${plural(judged, "verdict")}.` : judged ? `Ended after ${plural(judged, "verdict")}.` : "Nothing was judged.");
  if (!best) return;
  showCandidateCode("Closest", `Candidate ${best.candidate} passed ${number(best.tests_passed)} of ${plural(best.tests_total, "test")}.`,
    best.code, true);
}

async function start() {
  if (race) return;
  writeAddress();
  if ($("key").value) sessionStorage.setItem(KEY, $("key").value);
  else sessionStorage.removeItem(KEY);
  const [path, body] = requestOf();
  details = new Map();
  view = { counts: {}, tokens: 0, rows: 0, seconds: 0, samples: [], firstPass: null, result: null, done: false };
  grid.reset(body.firstpass.max_candidates);
  complain("");
  $("winner").hidden = true;
  // Not to the other button, which a second press would meet.
  if (document.activeElement === $("start")) $("grid").focus({ preventScroll: true });
  $("start").disabled = true;
  $("cancel").disabled = false;
  $("race").setAttribute("aria-busy", "true");
  say("Asked; the prompt is being read.");
  if ($("race").getBoundingClientRect().top > innerHeight / 2) $("race").scrollIntoView();
  showFigures();
  race = new Race($("key").value);
  let failure = null;
  try {
    await race.run(path, body, takeNews);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    failure = error;
  } finally {
    race = null;
    view.done = true;
    $("start").disabled = false;
    if (document.activeElement === $("cancel")) $("start").focus({ preventScroll: true });
    $("cancel").disabled = true;
    $("race").removeAttribute("aria-busy");
  }
  grid.stopAll();
  showFigures();
  if (failure) showFailure(failure);
  else if (view.result?.verified) showWinner();
  else showFailure(new Failure("none_passed", ""));
}

// ---- one candidate ----

function describe(i) {
  const state = grid.state(i), detail = details.get(i);
  const tokens = grid.tokens[i] ? `, ${plural(grid.tokens[i], "token")}` : "";
  if (!detail) return `Candidate ${i}: ${WORDS[state]}${tokens}`;
  const tests = detail.tests_total ? `, ${detail.tests_passed} of ${plural(detail.tests_total, "test")}` : "";
  return `Candidate ${i}: ${VERDICTS[detail.verdict] ?? detail.verdict}${tests}${tokens}${detail.duplicate ? ", the same code as another" : ""}`;
}

function testsTable(tests) {
  const shown = ["got", "expected", "error"].filter((field) => tests.some((test) => test[field]));
  const head = ["Test", "Result", ...shown.map((field) => field[0].toUpperCase() + field.slice(1))];
  const value = (text) => appendText(element("td", { class: "value" }), shortened(text ?? "", VALUE_MOST));
  const rows = tests.map((test) => element("tr", {}, value(test.name),
    element("td", { class: test.status === "passed" ? "passed" : "failed" }, `${test.status === "passed" ? "✓" : "✗"} ${test.status}`),
    ...shown.map((field) => value(test[field]))));
  return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Tests" },
    element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows)));
}

function codeBlock(title, text, wrong) {
  const pre = element("pre", { class: "source", tabindex: "0", "aria-label": title });
  showCode(pre, text, wrong);
  return [element("h3", {}, title), pre];
}

function detailNodes(detail) {
  const nodes = [];
  const facts = [`${plural(detail.tokens, "token")}`, `judged in ${number(detail.verify_s * 1000)} ms`];
  if (detail.ended === "length") facts.push("cut at the token limit");
  if (detail.limit) facts.push(`limit: ${detail.limit}`);
  if (detail.duplicate) facts.push("the same code as an earlier candidate");
  nodes.push(element("p", { class: "quiet" }, `${facts.join(", ")}.`));
  if (detail.error) nodes.push(appendText(element("p", { class: "reason" }), detail.error));
  if (detail.tests?.length) nodes.push(element("h3", {}, "Tests"), testsTable(detail.tests));
  const wrong = detail.tests?.find((test) => test.status !== "passed" && test.line)?.line ?? 0;
  if (detail.code) nodes.push(...codeBlock("Code", detail.code, wrong));
  else if (detail.text !== undefined) nodes.push(...codeBlock("Text without code", detail.text, 0));
  if (detail.output) nodes.push(element("h3", {}, "Output"), appendText(element("pre", { class: "reason", tabindex: "0" }), shortened(detail.output, 20000)));
  return nodes;
}

function showCandidate(i) {
  shown = i;
  grid.moveTo(i);
  const detail = details.get(i);
  $("dialog-title").textContent = `Candidate ${i} ${detail ? VERDICTS[detail.verdict] ?? detail.verdict : `is ${WORDS[grid.state(i)]}`}`;
  $("dialog-body").replaceChildren(...(detail ? detailNodes(detail)
    : [element("p", {}, "There is more to see once it has been judged.")]));
  $("previous").disabled = i <= 0;
  $("next").disabled = i >= grid.n - 1;
  $("dialog").scrollTop = 0;
}

function openCandidate(i) {
  showCandidate(i);
  $("dialog").showModal();
}

// ---- the beginning ----

for (const example of EXAMPLES) $("example").append(element("option", {}, example.name));
makeLegend();
if (!readAddress()) {
  takeExample(EXAMPLES[0]);
  $("example").selectedIndex = 1;
}
$("example").addEventListener("change", () => {
  const example = EXAMPLES[$("example").selectedIndex - 1];
  if (example) takeExample(example);
});
$("task").addEventListener("input", (event) => {
  if (["prompt", "tests"].includes(event.target.id)) $("example").selectedIndex = 0;
});
$("task").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
$("task").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $("task").requestSubmit();
});
$("cancel").addEventListener("click", () => race?.cancel());
$("close").addEventListener("click", () => $("dialog").close());
$("dialog").addEventListener("close", () => $("grid").focus({ preventScroll: true }));
$("dialog").addEventListener("click", (event) => {
  if (event.target === $("dialog")) $("dialog").close();
});
$("previous").addEventListener("click", () => showCandidate(shown - 1));
$("next").addEventListener("click", () => showCandidate(shown + 1));
addEventListener("hashchange", readAddress);
// A browser may keep the page for the way back, and its requests alive with it.
addEventListener("pagehide", () => race?.leave());
meetServer();
