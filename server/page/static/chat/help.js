// The keys, and a dialog that tells them.
import { make } from "../shared/dom.js";

const KEYS = [
  ["Enter", "send"],
  ["Shift + Enter", "new line"],
  ["Esc", "stop the answer; close what is open"],
  ["Ctrl + Shift + O", "new chat"],
  ["Ctrl + K", "search conversations"],
  ["Ctrl + /", "this help"],
];

/** What keys do anywhere on the page: `begin`, `search`, `help` and `escape` are called. ⌘ is as good as Ctrl. */
export function listenToKeys({ begin, search, help, escape }) {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const act = actOf(event, { begin, search, help, escape });
    if (!act || document.querySelector("dialog[open]")) return;
    if (act !== escape) event.preventDefault();
    act();
  });
}

function actOf(event, { begin, search, help, escape }) {
  if (event.key === "Escape") return escape;
  if (!(event.ctrlKey || event.metaKey) || event.altKey) return null;
  if (event.shiftKey && event.key.toLowerCase() === "o") return begin;
  if (!event.shiftKey && event.key.toLowerCase() === "k") return search;
  return event.key === "/" ? help : null;
}

export function showHelp() {
  const rows = KEYS.map(([keys, what]) => [make("dt", {}, keys.split(" + ").flatMap((key, place) => [place ? " + " : null, make("kbd", {}, key)])), make("dd", {}, what)]);
  const dialog = make("dialog", { class: "dialog", "aria-labelledby": "help-title", onclose: () => dialog.remove() },
    make("h2", { id: "help-title" }, "Keys"),
    make("dl", { class: "keys" }, rows.flat()),
    make("p", { class: "quiet-text" }, "Conversations are kept in this browser only. Answers go on at the server while this page is away for a while."),
    make("div", { class: "buttons" }, make("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}
