// A text cut into pieces that are laid out by themselves: its blocks, and parts of the very long ones.
import { blocksOf } from "./markdown.js";

const CODE_LINES = 150;
const LIST_ITEMS = 40;
const TABLE_ROWS = 100;
const OPEN = 2; // blocks at the end that more text may still change

/**
 * The pieces of a text: {key, source, code}. Two with the same key look the same. `settled` is how many characters, from the
 * beginning, belong to the first `pieces` of them, which more text leaves as they are; `links` are the definitions in it.
 */
export function split(text) {
  let tokens;
  try {
    tokens = blocksOf(text).filter((token) => token.raw !== "");
  } catch { // nested deeper than scripts can follow
    return { pieces: [{ key: text, source: text }], settled: { characters: 0, pieces: 0 }, links: {} };
  }
  const open = openFrom(tokens);
  const pieces = [];
  const links = {};
  const settled = { characters: 0, pieces: 0 };
  tokens.forEach((token, index) => {
    if (token.type === "def") links[token.tag] = { href: token.href, title: token.title };
    else if (token.type !== "space") pieces.push(...piecesOf(token));
    if (index < open) {
      settled.characters += token.raw.length;
      settled.pieces = pieces.length;
    }
  });
  return { pieces, settled, links };
}

function openFrom(tokens) {
  let left = OPEN;
  let index = tokens.length;
  while (index > 0 && left > 0) {
    index -= 1;
    if (tokens[index].type !== "space") left -= 1;
  }
  return index;
}

function piecesOf(token) {
  if (token.type === "code") return codePieces(token);
  if (token.type === "list" && token.items.length > LIST_ITEMS) return parts(token.items.map((item) => item.raw), LIST_ITEMS, "");
  if (token.type === "table" && token.rows.length > TABLE_ROWS) {
    const [head, rule, ...rows] = token.raw.trimEnd().split("\n");
    return parts(rows.map((row) => `${row}\n`), TABLE_ROWS, `${head}\n${rule}\n`);
  }
  return [{ key: token.raw, source: token.raw }];
}

function parts(lines, size, head) {
  const found = [];
  for (let start = 0; start < lines.length; start += size) {
    const source = head + lines.slice(start, start + size).join("");
    found.push({ key: source, source });
  }
  return found;
}

function codePieces(token) {
  const language = (token.lang ?? "").trim().split(/\s/, 1)[0];
  const lines = token.text.split("\n");
  const found = [];
  for (let start = 0; start < lines.length; start += CODE_LINES) {
    const text = lines.slice(start, start + CODE_LINES).join("\n");
    const [first, last] = [start === 0, start + CODE_LINES >= lines.length];
    found.push({ key: `${first} ${last} ${language}\n${text}`, source: text, code: { language, text, first, last } });
  }
  const block = { text: token.text };
  for (const piece of found) Object.assign(piece, { block });
  return found;
}
