// Python with its words coloured: enough of the lexer to tell strings, comments, numbers, keywords and names that are defined.
import { appendText, element } from "./text.js";

const KEYWORDS = new Set(("False None True and as assert async await break class continue def del elif else except finally for "
  + "from global if import in is lambda match nonlocal not or pass raise return try while with yield").split(" "));
const TOKEN = new RegExp([
  /(?<comment>#[^\n]*)/,
  /(?<string>(?:[rRbBuUfF]{0,2})(?:"""(?:[^\\]|\\[^])*?(?:"""|$(?![^]))|'''(?:[^\\]|\\[^])*?(?:'''|$(?![^]))|"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?))/,
  /(?<number>\b(?:0[xXoObB][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?j?)\b)/,
  /(?<word>[\p{L}_][\p{L}\p{N}_]*)/,
].map((part) => part.source).join("|"), "gu");
const MOST = 100000; // characters; more is shown without colours

function* pieces(code) {
  let at = 0, before = "";
  for (const found of code.length > MOST ? [] : code.matchAll(TOKEN)) {
    if (found.index > at) yield [code.slice(at, found.index), null];
    const { comment, string, number, word } = found.groups;
    let kind = comment ? "comment" : string ? "string" : number ? "number" : null;
    if (word) {
      kind = KEYWORDS.has(word) ? "keyword" : before === "def" || before === "class" ? "name" : null;
      before = word;
    }
    yield [found[0], kind];
    at = found.index + found[0].length;
  }
  if (at < code.length) yield [code.slice(at), null];
}

// Fills a <pre> with one <code> for each line; `wrong` is the number of a line to mark, or 0.
export function showCode(pre, code, wrong = 0) {
  const lines = [];
  const begin = () => {
    const line = element("code", { "data-line": String(lines.length + 1) });
    if (lines.length + 1 === wrong) line.classList.add("wrong");
    lines.push(line);
  };
  begin();
  for (const [text, kind] of pieces(code.replace(/\r\n?/g, "\n").replace(/\n+$/, ""))) {
    text.split("\n").forEach((part, i) => {
      if (i) begin();
      if (!part) return;
      const line = lines[lines.length - 1];
      appendText(kind ? line.appendChild(element("span", { class: `t-${kind}` })) : line, part);
    });
  }
  // Line ends are there for who copies; display: block gives one, too, but not in text.
  pre.replaceChildren(...lines.flatMap((line, i) => (i ? ["\n", line] : [line])));
}
