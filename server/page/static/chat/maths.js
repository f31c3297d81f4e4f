// Formulas as MathML, by KaTeX, which is loaded when the first one comes. What it cannot read stays as it was written.
import { safeMaths } from "./sanitizing.js";

const LONGEST = 5000; // characters of a formula
const MOST_REMEMBERED = 300; // formulas of a block that is still written are set again and again
const remembered = new Map();
let loading = null;

async function library() {
  loading ??= import("../vendor/katex.min.js").then(() => globalThis.katex);
  return loading;
}

/** Puts formulas in the place of all elements below `root` that hold one. */
export function setMaths(root) {
  for (const element of root.querySelectorAll("[data-maths]")) {
    const block = element.dataset.maths === "block";
    if (globalThis.katex) put(globalThis.katex, element, block);
    else library().then((katex) => put(katex, element, block)).catch(() => {});
  }
}

function put(katex, element, block) {
  const text = element.textContent;
  const html = mathml(katex, text, block);
  element.classList.add("maths");
  if (html === null) return;
  element.replaceChildren(safeMaths(html));
}

function mathml(katex, text, block) {
  const key = `${block} ${text}`;
  if (!remembered.has(key)) {
    if (remembered.size >= MOST_REMEMBERED) remembered.delete(remembered.keys().next().value);
    remembered.set(key, convert(katex, text, block));
  }
  return remembered.get(key);
}

function convert(katex, text, block) {
  if (text.length > LONGEST) return null;
  try {
    const html = katex.renderToString(text, { output: "mathml", displayMode: block, throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 });
    // The source would be shown beside the formula without `semantics`; and the policy takes offence at styles even in passing.
    return html.replace(/<annotation encoding="application\/x-tex">[^<]*<\/annotation>| style="[^"]*"/g, "");
  } catch {
    return null;
  }
}
