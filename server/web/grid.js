// A cell for each candidate, on a canvas: ten thousand of them cost no more than a few.  For the keyboard and for screen
// readers the canvas is a list box whose one option is the cell under the cursor.

export const STATES = ["waiting", "decoding", "verifying", "passed", "failed", "cancelled", "broken"];
const SIZES = [46, 38, 32, 26, 21, 17, 14, 11, 9, 7];
const MARKED = 14; // smaller cells have simpler marks

// Colours as the style sheet has them for light or dark.
export function readColours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries([...STATES, "cell", "mark", "ink", "focus", "paper"].map((name) =>
    [name, style.getPropertyValue(`--${name}`).trim()]));
}

function strokes(context, width, colour, ...lines) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  context.beginPath();
  for (const [first, ...rest] of lines) {
    context.moveTo(...first);
    for (const point of rest) context.lineTo(...point);
  }
  context.stroke();
}

// One cell of side s at x, y.  Each state differs in shape and not in colour only; `share`: of its tokens, while decoding.
export function drawCell(context, colours, state, x, y, s, share = 0) {
  const at = (u, v) => [x + u * s, y + v * s];
  const fill = (colour, u = 0, v = 0, w = 1, h = 1) => {
    context.fillStyle = colour;
    context.fillRect(x + u * s, y + v * s, w * s, h * s);
  };
  const thin = Math.max(1, s / 9);
  switch (state) {
    case "waiting":
      context.fillStyle = colours.waiting;
      context.beginPath();
      context.arc(...at(0.5, 0.5), Math.max(0.9, s * 0.09), 0, 7);
      context.fill();
      break;
    case "decoding": { // fills up from below
      const h = Math.max(0.12, Math.min(0.96, share));
      fill(colours.cell);
      fill(colours.decoding, 0, 1 - h, 1, h);
      break;
    }
    case "verifying": // half and half
      fill(colours.cell);
      context.fillStyle = colours.verifying;
      context.beginPath();
      context.moveTo(...at(0, 0));
      context.lineTo(...at(1, 0));
      context.lineTo(...at(0, 1));
      context.fill();
      break;
    case "passed":
      fill(colours.passed);
      if (s >= MARKED) strokes(context, thin, colours.mark, [at(0.25, 0.53), at(0.43, 0.71), at(0.76, 0.3)]);
      break;
    case "failed":
      if (s >= MARKED) {
        fill(colours.cell);
        strokes(context, thin, colours.failed, [at(0.27, 0.27), at(0.73, 0.73)], [at(0.73, 0.27), at(0.27, 0.73)]);
      } else {
        strokes(context, Math.max(1.4, s / 5), colours.failed, [at(0.15, 0.15), at(0.85, 0.85)], [at(0.85, 0.15), at(0.15, 0.85)]);
      }
      break;
    case "cancelled":
      fill(colours.cell);
      strokes(context, thin, colours.cancelled, [at(0.25, 0.5), at(0.75, 0.5)]);
      break;
    case "broken": // the sandbox's failure
      fill(colours.cell);
      strokes(context, thin, colours.broken, [at(0.5, 0.2), at(0.5, 0.58)], [at(0.5, 0.79), at(0.5, 0.8)]);
      break;
  }
}

export class Grid {
  // describe(i): what a cell is, in words; open(i): it was chosen.
  constructor(root, line, describe, open) {
    this.root = root;
    this.canvas = root.querySelector("canvas");
    this.option = root.querySelector("[role=option]");
    this.line = line;
    this.describe = describe;
    this.open = open;
    this.context = this.canvas.getContext("2d");
    this.colours = readColours();
    this.changed = new Set();
    this.cursor = 0;
    this.winner = -1;
    this.frame = 0;
    this.reset(0);
    new ResizeObserver(() => this.layOut()).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colours = readColours();
      this.layOut(true);
    });
    root.addEventListener("keydown", (event) => this.onKey(event));
    root.addEventListener("click", (event) => {
      const i = this.indexAt(event);
      if (i < 0) return;
      this.moveTo(i);
      this.open(i);
    });
    root.addEventListener("pointermove", (event) => {
      const i = this.indexAt(event);
      if (event.pointerType === "mouse" && i >= 0) this.say(i);
    });
    root.addEventListener("pointerleave", () => this.say(this.cursor));
    root.addEventListener("focus", () => this.paintCursor());
    root.addEventListener("blur", () => this.paintCursor());
  }

  reset(n) {
    this.n = n;
    this.states = new Uint8Array(n); // positions in STATES
    this.tokens = new Uint32Array(n);
    this.most = 128; // tokens that fill a cell: those of the longest, and no short ones look long
    this.counts = STATES.map((_, i) => (i ? 0 : n));
    this.cursor = 0;
    this.winner = -1;
    this.width = 0;
    this.layOut();
  }

  set(i, state, tokens) {
    const code = STATES.indexOf(state);
    this.counts[this.states[i]]--;
    this.counts[code]++;
    this.states[i] = code;
    this.tokens[i] = tokens;
    this.touch(i);
  }

  setWinner(i) {
    this.winner = i;
    this.moveTo(i);
  }

  state(i) {
    return STATES[this.states[i]];
  }

  // Whoever is neither judged nor waiting won't be.
  stopAll() {
    for (let i = 0; i < this.n; i++) {
      if (this.state(i) === "decoding" || this.state(i) === "verifying") this.set(i, "cancelled", this.tokens[i]);
    }
  }

  // ---- place ----

  // The largest cells that fit the width in a screen's height or so.
  layOut(again = false) {
    const width = Math.floor(this.root.clientWidth);
    if (!width || (width === this.width && !again)) return;
    this.width = width;
    const height = Math.max(260, Math.min(560, innerHeight * 0.6));
    const rows = (size) => Math.ceil(this.n / Math.floor(width / size));
    this.size = SIZES.find((size) => rows(size) * size <= height) ?? SIZES.at(-1);
    this.columns = Math.max(1, Math.floor(width / this.size));
    this.gap = this.size > 20 ? 4 : this.size > 10 ? 2 : 1;
    this.scale = Math.min(3, devicePixelRatio || 1);
    const tall = Math.max(1, rows(this.size)) * this.size + 4;
    this.canvas.width = width * this.scale;
    this.canvas.height = tall * this.scale;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${tall}px`;
    for (let i = 0; i < this.n; i++) this.changed.add(i);
    this.touch(0);
  }

  indexAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.size), row = Math.floor((event.clientY - box.top) / this.size);
    const i = row * this.columns + column;
    return column >= 0 && column < this.columns && row >= 0 && i < this.n ? i : -1;
  }

  // ---- drawing: what changed, once a frame ----

  touch(i) {
    this.changed.add(i);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    for (const i of this.changed) if (i < this.n) this.paintCell(i);
    this.changed.clear();
    if (this.n) this.say(this.cursor);
  }

  paintCell(i) {
    const { context, size, gap, scale, colours } = this;
    const x = (i % this.columns) * size + 2, y = Math.floor(i / this.columns) * size + 2, inner = size - gap;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(x - 2, y - 2, size, size);
    drawCell(context, colours, this.state(i), x, y, inner, this.tokens[i] / this.most);
    const focused = i === this.cursor && document.activeElement === this.root;
    if (!focused && i !== this.winner) return;
    context.strokeStyle = focused ? colours.focus : colours.ink;
    context.lineWidth = size > 20 ? 2.5 : 1.5;
    context.strokeRect(x - 0.5, y - 0.5, inner + 1, inner + 1);
  }

  paintCursor() {
    this.touch(this.cursor);
  }

  // ---- cursor ----

  say(i) {
    if (!this.n) return;
    const words = this.describe(i);
    if (this.line.textContent !== words) this.line.textContent = words;
    if (i !== this.cursor || this.option.textContent === words) return;
    this.option.textContent = words;
    this.option.setAttribute("aria-posinset", String(i + 1));
    this.option.setAttribute("aria-setsize", String(this.n));
  }

  moveTo(i) {
    const to = Math.max(0, Math.min(this.n - 1, i));
    this.touch(this.cursor);
    this.cursor = to;
    this.touch(to);
    this.say(to);
  }

  onKey(event) {
    if (!this.n || event.ctrlKey || event.altKey || event.metaKey) return;
    const { cursor, columns, n } = this;
    const below = cursor + columns < n ? cursor + columns : cursor, above = cursor >= columns ? cursor - columns : cursor;
    const steps = { ArrowRight: cursor + 1, ArrowLeft: cursor - 1, ArrowDown: below, ArrowUp: above, Home: 0, End: n - 1,
      PageDown: cursor + 10 * columns, PageUp: cursor - 10 * columns };
    if (event.key in steps) this.moveTo(steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.open(cursor);
    else return;
    event.preventDefault();
  }
}
