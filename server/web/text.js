// Text that a model or a candidate wrote, as nodes: nothing of it is ever read as HTML, and what would be invisible or
// turn a line around is spelled out.

// Controls but tab and line end, soft hyphens, zero widths, directions, and the rest of Unicode's invisible ones.
const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Appends text to a node, odd characters as little boxes with their numbers.
export function appendText(node, text) {
  let at = 0;
  for (const found of text.matchAll(ODD)) {
    if (found.index > at) node.append(text.slice(at, found.index));
    const number = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    node.append(element("span", { class: "odd", title: "a character that isn't seen" }, `U+${number}`));
    at = found.index + found[0].length;
  }
  if (at < text.length) node.append(text.slice(at));
  return node;
}

// A long text is cut in the middle of nothing: its beginning, and how much there is more.
export function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most)} … (${(text.length - most).toLocaleString("en")} more characters)`;
}
