// Blocks of code: a head with the language and a button that copies, and colours, whose library is loaded when the first block comes.
import { make } from "../shared/dom.js";
import { copyButton } from "./copying.js";
import { safeCode } from "./sanitizing.js";

const LONGEST = 50_000; // characters that are coloured
let loading = null;
let loaded = null;

function library() {
  loading ??= import("../vendor/highlight.min.js").then((module) => { loaded = module.default; return loaded; });
  return loading;
}

/**
 * A piece of a block of code. `whole()` is the text to be copied; `first` and `last` say where in the block the piece is:
 * long blocks have several, so that a new line does not lay out thousands of others.
 */
export function codePiece({ language, text, first = true, last = true, whole = () => text }) {
  const code = make("code", {}, text);
  const pre = make("pre", { tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code", role: "group" }, code);
  const place = `code${first ? " first" : ""}${last ? " last" : ""}`;
  colour(code, language, text);
  if (!first) return make("div", { class: place }, pre);
  const head = make("div", { class: "code-head" }, make("span", {}, language || "text"), copyButton("Copy code", whole));
  return make("div", { class: place }, head, pre);
}

function colour(code, language, text) {
  if (!language || text.length > LONGEST) return;
  if (loaded) put(code, language, text);
  else library().then(() => put(code, language, text)).catch(() => {});
}

function put(code, language, text) {
  if (!loaded.getLanguage(language)) return;
  code.replaceChildren(safeCode(loaded.highlight(text, { language, ignoreIllegals: true }).value));
}
