// Small questions.
import { make } from "../shared/dom.js";

function ask({ title, text, field, action, danger }) {
  return new Promise((resolve) => {
    const input = field === undefined ? null : make("input", { id: "asked-field", value: field, autocomplete: "off" });
    const form = make("form", { onsubmit: (event) => { event.preventDefault(); finish(input ? input.value : true); } },
      make("h2", { id: "asked-title" }, title),
      text ? make("p", {}, text) : null,
      input ? [make("label", { for: "asked-field", class: "visually-hidden" }, title), input] : null,
      make("div", { class: "buttons" },
        make("button", { type: "button", onclick: () => finish(null) }, "Cancel"),
        make("button", { type: "submit", class: danger ? "danger" : "primary" }, action)));
    const dialog = make("dialog", { class: "dialog", "aria-labelledby": "asked-title", oncancel: (event) => { event.preventDefault(); finish(null); } }, form);
    function finish(value) {
      dialog.close();
      dialog.remove();
      resolve(value);
    }
    document.body.append(dialog);
    dialog.showModal();
    input?.select();
  });
}

/** True if the user agrees. */
export async function confirmed(title, text, action) {
  return (await ask({ title, text, action, danger: true })) !== null;
}

/** The text that the user gives, or null. */
export function askText(title, field, action) {
  return ask({ title, field, action });
}

/** Something went wrong that has no place of its own on the page. */
export function tell(title, text) {
  return ask({ title, text, action: "OK" });
}
