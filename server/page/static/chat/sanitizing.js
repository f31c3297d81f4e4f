// What of HTML may get into the page: text in its forms, and nothing that acts, loads, or has a name that scripts could mistake for theirs.
import "../vendor/purify.min.js";

const purify = globalThis.DOMPurify(window);

const TAGS = [
  "a", "b", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "mark", "ol", "p", "pre", "s",
  "small", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul",
];
const ATTRIBUTES = ["align", "alt", "class", "data-code", "data-maths", "href", "src", "start", "title"];
const NO_ADDRESSES = ["align", "data-code", "data-maths", "start"]; // so that they need not look like one
const MATHS_TAGS = [
  "math", "maction", "menclose", "merror", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom", "mprescripts",
  "mroot", "mrow", "ms", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover", "span",
];
const MATHS_ATTRIBUTES = [
  "accent", "accentunder", "class", "columnalign", "columnlines", "columnspacing", "depth", "display", "displaystyle", "fence", "form", "height", "linebreak",
  "linethickness", "lspace", "mathbackground", "mathcolor", "mathsize", "mathvariant", "maxsize", "minsize", "movablelimits", "notation",
  "rowlines", "rowspacing", "rspace", "scriptlevel", "separator", "stretchy", "symmetric", "voffset", "width", "xmlns",
];
const SHARED = { ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true };

export const LINK = /^(?:https?:\/\/|mailto:)/i;

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

/** A fragment of what markdown became. */
export function safeText(html) {
  return purify.sanitize(html, { ...SHARED, ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOWED_URI_REGEXP: LINK, ADD_URI_SAFE_ATTR: NO_ADDRESSES });
}

/** A fragment of MathML. */
export function safeMaths(html) {
  return purify.sanitize(html, { ...SHARED, ALLOWED_TAGS: MATHS_TAGS, ALLOWED_ATTR: MATHS_ATTRIBUTES });
}

/** A fragment of highlighted code: spans with classes. */
export function safeCode(html) {
  return purify.sanitize(html, { ...SHARED, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] });
}
