// Markdown (GitHub's) with formulas. HTML that a model writes is shown as it is written, but for a few tags that only mark text.
import { Lexer, Marked, Parser, Tokenizer } from "../vendor/marked.esm.js";
import { codePiece } from "./code.js";
import { make } from "../shared/dom.js";
import { setMaths } from "./maths.js";
import { LINK, safeText } from "./sanitizing.js";

const LONGEST_PARAGRAPH = 4000; // characters; longer ones are cut, so that none takes long
const MARKS = /^<\/?(?:b|br|del|em|i|kbd|mark|s|small|strong|sub|sup|u)\s*\/?>$/i;
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,/i;
const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (sign) => SIGNS[sign]);
const formula = (kind, text) => `<span data-maths="${kind}">${escape(text)}</span>`;

const blockMaths = {
  name: "blockMaths",
  level: "block",
  start(source) { // only as far as the paragraph goes: this is asked at each one
    const end = source.indexOf("\n\n");
    const found = (end < 0 ? source : source.slice(0, end)).search(/\n {0,3}(?:\$\$|\\\[)/);
    return found < 0 ? undefined : found + 1;
  },
  tokenizer(source) {
    const match = /^ {0,3}(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/.exec(source);
    return match ? { type: "blockMaths", raw: match[0], text: (match[1] ?? match[2]).trim() } : undefined;
  },
  renderer: (token) => `<p>${formula("block", token.text)}</p>`,
};

// $ opens before anything but space, and closes behind anything but space and before no digit: "$5 and $10" is money.
const inlineMaths = {
  name: "inlineMaths",
  level: "inline",
  start(source) {
    const found = source.search(/\$|\\[([]/);
    return found < 0 ? undefined : found;
  },
  tokenizer(source) {
    const block = /^(?:\$\$([^$]+?)\$\$|\\\[([\s\S]+?)\\\])/.exec(source);
    if (block) return { type: "inlineMaths", raw: block[0], text: (block[1] ?? block[2]).trim(), kind: "block" };
    const line = /^(?:\$((?:\\\$|[^$\s])(?:(?:\\\$|[^$\n])*?(?:\\\$|[^$\s\\]))?)\$(?!\d)|\\\(([\s\S]+?)\\\))/.exec(source);
    return line ? { type: "inlineMaths", raw: line[0], text: (line[1] ?? line[2]).trim(), kind: "inline" } : undefined;
  },
  renderer: (token) => formula(token.kind, token.text),
};

const renderer = {
  html: ({ text }) => (MARKS.test(text) ? text.toLowerCase() : escape(text)),
  heading({ tokens, depth }) {
    const level = Math.min(6, depth + 2); // below the page's own headings
    return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
  },
  link({ href, title, tokens }) {
    const text = this.parser.parseInline(tokens);
    return LINK.test(href) ? `<a href="${escape(href)}"${title ? ` title="${escape(title)}"` : ""}>${text}</a>` : text;
  },
  image({ href, text }) { // those of other servers are not loaded: to ask for one tells that server what is talked about
    if (PICTURE.test(href)) return `<img src="${escape(href)}" alt="${escape(text)}">`;
    return LINK.test(href) ? `<a href="${escape(href)}">[image: ${escape(text || href)}]</a>` : escape(text);
  },
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  code: ({ text, lang }) => `<pre data-code="${escape((lang ?? "").trim().split(/\s/, 1)[0])}">${escape(text)}</pre>`,
};

const tokenizer = {
  paragraph(source) {
    if (source.length <= LONGEST_PARAGRAPH) return false; // as it is otherwise
    const token = Tokenizer.prototype.paragraph.call(this, source.slice(0, LONGEST_PARAGRAPH));
    if (!token || token.raw.length < LONGEST_PARAGRAPH) return token;
    const end = Math.max(token.raw.lastIndexOf(" "), token.raw.lastIndexOf("\n")) + 1 || LONGEST_PARAGRAPH;
    this.lexer.inlineQueue.pop();
    const raw = token.raw.slice(0, end);
    return { type: "paragraph", raw, text: raw.trimEnd(), tokens: this.lexer.inline(raw.trimEnd()) };
  },
};

const marked = new Marked({ gfm: true, breaks: true, extensions: [blockMaths, inlineMaths], renderer, tokenizer });

/** The blocks of a text, as tokens: what they consist of is read when they are shown. */
export function blocksOf(source) {
  return new Lexer(marked.defaults).blockTokens(source, []);
}

/** One block as a fragment; `links` are the text's definitions of [names]. Never fails: what cannot be read is shown as it is. */
export function render(source, links = {}) {
  try {
    const lexer = new Lexer(marked.defaults);
    Object.assign(lexer.tokens.links, links);
    const fragment = safeText(new Parser(marked.defaults).parse(lexer.lex(source)));
    finish(fragment);
    return fragment;
  } catch {
    const fragment = document.createDocumentFragment();
    fragment.append(make("pre", { class: "as-written" }, source));
    return fragment;
  }
}

function finish(fragment) {
  for (const pre of fragment.querySelectorAll("pre[data-code]")) pre.replaceWith(codePiece({ language: pre.dataset.code, text: pre.textContent }));
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  setMaths(fragment);
}
