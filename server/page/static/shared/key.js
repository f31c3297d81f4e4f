// The API key: asked for when the server wants one, kept in this browser, sent by api.js.
import { make } from "./dom.js";
import { setting, setSetting } from "./settings.js";

let asking = null;

/** Asks for the key, and says why. True if one was saved: the request can be made again. Asked twice at once, it asks once. */
export function askKey(reason = "") {
  asking ??= ask(reason).finally(() => { asking = null; });
  return asking;
}

function ask(reason) {
  return new Promise((resolve) => {
    const field = make("input", { type: "password", id: "key-field", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-reason" });
    field.value = setting("key", "");
    const form = make("form", { onsubmit: (event) => { event.preventDefault(); finish(true); } },
      make("h2", { id: "key-title" }, "API key"),
      make("p", { id: "key-reason" }, reason || "It is kept in this browser and sent to this server only."),
      make("label", { for: "key-field" }, "Key"), field,
      make("div", { class: "buttons" },
        make("button", { type: "button", onclick: () => finish(false) }, "Cancel"),
        make("button", { type: "submit", class: "primary" }, "Save")));
    const dialog = make("dialog", { class: "dialog", "aria-labelledby": "key-title", oncancel: (event) => { event.preventDefault(); finish(false); } }, form);
    function finish(save) {
      if (save) setSetting("key", field.value.trim());
      dialog.close();
      dialog.remove();
      resolve(save);
    }
    document.body.append(dialog);
    dialog.showModal();
    field.select();
  });
}
