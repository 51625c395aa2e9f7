// The part of Markdown that answers use: code, lists, headings, quotes, bold, italic.
// Elements are built one by one; whatever is not known stays the text that it is.

import { copyButton, make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.+?)\s*#*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])/g;

/** Cut a text into blocks, each with its kind and its lines; the last one may still grow. */
export function blocksOf(text) {
  const blocks = [];
  let open = null;
  const begin = (kind, more = {}) => blocks.push((open = { kind, lines: [], ...more }));
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    if (open?.kind === "code") {
      const end = line.trim();
      if (end.startsWith(open.fence) && !end.replaceAll(open.fence[0], "")) open = null;
      else open.lines.push(line);
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) begin("code", { fence: fence[1], language: fence[2].trim() });
    else if (!line.trim()) open = open?.kind === "list" ? open : null;
    else if (RULE.test(line)) { begin("rule"); open = null; }
    else if (HEADING.test(line)) { begin("heading", { lines: [line] }); open = null; }
    else if (ITEM.test(line)) {
      if (open?.kind !== "list") begin("list");
      open.lines.push(line);
    } else {
      const kind = QUOTE.test(line) ? "quote" : open?.kind === "list" && /^ /.test(line) ? "list" : "text";
      if (open?.kind !== kind) begin(kind);
      open.lines.push(line);
    }
  }
  return blocks;
}

/** Return the element of a block. */
export function elementOf(block) {
  const text = block.lines.join("\n");
  switch (block.kind) {
    case "code": return code(block.language, text);
    case "rule": return make("hr");
    case "list": return list(block.lines);
    case "heading": {
      const [, marks, title] = HEADING.exec(text);
      return make(`h${Math.min(6, marks.length + 2)}`, { dir: "auto" }, ...inline(title));
    }
    case "quote":
      return make("blockquote", { dir: "auto" }, ...inline(block.lines.map((line) => QUOTE.exec(line)?.[1] ?? line).join("\n")));
    default: return make("p", { dir: "auto" }, ...inline(text));
  }
}

function code(language, text) {
  // Reachable by keyboard, as a wide one scrolls sideways.
  const pre = make("pre", { tabindex: "0", "aria-label": `Code ${language}`.trim() }, make("code", {}, text));
  const head = make("div", { class: "code-head" }, make("span", {}, language || "code"), copyButton("Copy", () => text));
  return make("div", { class: "code", dir: "ltr" }, head, pre);
}

function list(lines) {
  const root = make("div");
  // The lists that are open, outermost first, each with how far its items are set in.
  const open = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      open.at(-1).list.lastElementChild.append("\n", ...inline(line.trim()));
      continue;
    }
    const [, indent, number, text] = item;
    const tag = number ? "OL" : "UL";
    const isAnother = ({ list, indent: outer }) => indent.length < outer || (indent.length === outer && list.tagName !== tag);
    while (open.length && isAnother(open.at(-1))) open.pop();
    if (!open.length || indent.length > open.at(-1).indent + 1) {
      const made = make(tag, number ? { start: number } : {});
      (open.at(-1)?.list.lastElementChild ?? root).append(made);
      open.push({ list: made, indent: indent.length });
    }
    open.at(-1).list.append(make("li", { dir: "auto" }, ...inline(text)));
  }
  return root;
}

function inline(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, ticks, quoted, bold, italic] = match;
    if (match.index > end) parts.push(text.slice(end, match.index));
    if (ticks) parts.push(make("code", {}, quoted.trim() ? quoted.replace(/^ (.*) $/s, "$1") : quoted));
    else if (bold) parts.push(make("strong", {}, ...inline(bold)));
    else parts.push(make("em", {}, ...inline(italic)));
    end = match.index + whole.length;
  }
  if (end < text.length) parts.push(text.slice(end));
  return parts;
}

/** Shows a growing text in an element; what has not changed is left alone, and stays selected. */
export class Markdown {
  #element;
  #shown = [];

  constructor(element) {
    this.#element = element;
  }

  show(text) {
    const blocks = blocksOf(text);
    const marks = blocks.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < marks.length && marks[same] === this.#shown[same]) same++;
    while (this.#element.childElementCount > same) this.#element.lastElementChild.remove();
    this.#element.append(...blocks.slice(same).map(elementOf));
    this.#shown = marks;
  }
}
