// The settings of answers to come: a sheet at the side. What is left empty is the server's own.
import { make } from "../shared/dom.js";
import { setting } from "../shared/settings.js";
import { askKey } from "../shared/key.js";
import { icon } from "./icons.js";
import { NUMBERS, prefer, preferences } from "./preferences.js";
import { schemaProblem, toolsProblem } from "./tools.js";

/** `changed()` is called when something was set, `keyChanged()` when the key was. */
export class SettingsPanel {
  constructor({ changed, keyChanged }) {
    this.changed = changed;
    this.keyChanged = keyChanged;
    this.element = make("dialog", { class: "sheet", "aria-labelledby": "settings-title", onclick: (event) => { if (event.target === this.element) this.element.close(); } });
    document.body.append(this.element);
  }

  open(field) {
    this.element.replaceChildren(make("div", { class: "sheet-inside" }, ...this.#content()));
    this.element.showModal();
    if (field) this.element.querySelector(`#${field}`).focus();
  }

  #content() {
    return [
      make("div", { class: "sheet-head" }, make("h2", { id: "settings-title" }, "Settings"),
        make("button", { type: "button", class: "quiet icon-button", "aria-label": "Close settings", title: "Close", onclick: () => this.element.close() }, icon("close"))),
      this.#text("system", "System prompt", { rows: "3", placeholder: "None" }),
      make("fieldset", {}, make("legend", {}, "Sampling"),
        make("p", { class: "quiet-text" }, "What is left empty is the server's default."),
        make("div", { class: "numbers" }, NUMBERS.map((number) => this.#number(number))),
        this.#text("stop", "Stop strings", { rows: "2", placeholder: "One a line; \\n is a line's end" })),
      make("fieldset", {}, make("legend", {}, "Form of the answer"),
        this.#text("schema", "JSON schema", { rows: "4", class: "mono", spellcheck: "false", placeholder: '{"type": "object", ...}' }, schemaProblem)),
      make("fieldset", {}, make("legend", {}, "Tools"),
        this.#check("calculator", "Calculator", "The model may call it, and the page answers."),
        this.#text("tools", "Other tools (JSON list)", { rows: "3", class: "mono", spellcheck: "false", placeholder: '[{"type": "function", "function": {"name": ...}}]' }, toolsProblem)),
      make("fieldset", {}, make("legend", {}, "Tokens"),
        this.#check("logprobs", "Probabilities of tokens", "Asks for them with new answers; a button below an answer shows them.")),
      make("fieldset", {}, make("legend", {}, "API key"), this.#key()),
      make("button", { type: "button", onclick: () => this.#reset() }, "All as the server has it"),
    ];
  }

  #number([name, label, whole, hint]) {
    const field = make("input", {
      type: "number", id: `set-${name}`, step: whole ? "1" : "any", inputmode: whole ? "numeric" : "decimal", placeholder: "default", title: hint,
      oninput: () => {
        const { [name]: _, ...others } = preferences().numbers;
        prefer({ numbers: field.value === "" ? others : { ...others, [name]: Number(field.value) } });
        this.changed();
      },
    });
    field.value = preferences().numbers[name] ?? "";
    return make("div", { class: "field" }, make("label", { for: field.id }, label), field);
  }

  #text(name, label, attributes, problem = () => "") {
    const told = make("p", { class: "error", id: `set-${name}-error`, role: "alert" });
    const field = make("textarea", {
      id: `set-${name}`, ...attributes, "aria-describedby": told.id,
      oninput: () => {
        prefer({ [name]: field.value });
        check();
        this.changed();
      },
    });
    function check() {
      told.textContent = problem(field.value);
      field.setAttribute("aria-invalid", String(told.textContent !== ""));
    }
    field.value = preferences()[name];
    check();
    return make("div", { class: "field" }, make("label", { for: field.id }, label), field, told);
  }

  #check(name, label, hint) {
    const box = make("input", { type: "checkbox", id: `set-${name}`, "aria-describedby": `set-${name}-hint`, onchange: () => { prefer({ [name]: box.checked }); this.changed(); } });
    box.checked = preferences()[name];
    return make("div", { class: "check" }, box, make("div", {}, make("label", { for: box.id }, label), make("p", { class: "quiet-text", id: `set-${name}-hint` }, hint)));
  }

  #key() {
    const told = make("span", { class: "quiet-text" });
    const tell = () => { told.textContent = setting("key", "") ? "A key is sent." : "No key is sent."; };
    const change = async () => {
      if (!(await askKey("Kept in this browser, and sent to this server only. Empty it to send none."))) return;
      tell();
      this.keyChanged();
    };
    tell();
    return make("div", { class: "key" }, told, make("button", { type: "button", onclick: change }, "Change"));
  }

  #reset() {
    prefer({ numbers: {}, stop: "", system: "", schema: "", tools: "", calculator: false, logprobs: false });
    this.element.close();
    this.open();
    this.changed();
  }
}
