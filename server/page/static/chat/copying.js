// The clipboard, with a way for pages that are not in a secure context.
import { make } from "../shared/dom.js";
import { icon } from "./icons.js";

const SHOWN = 1500; // milliseconds that a button says it has copied

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

/** A button that copies what `text()` gives when it is pressed. */
export function copyButton(label, text) {
  const button = make("button", { class: "quiet icon-button", type: "button", "aria-label": label, title: label }, icon("copy"));
  button.addEventListener("click", async () => {
    const done = await copyText(text()).then(() => true, () => false);
    button.replaceChildren(icon(done ? "check" : "warn"));
    button.setAttribute("aria-label", done ? "Copied" : "Not copied");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, SHOWN);
  });
  return button;
}
