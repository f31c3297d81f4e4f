// Which model answers: those that the server lists, adapters among them.
import { ApiError, request } from "../shared/api.js";
import { make } from "../shared/dom.js";
import { askKey } from "../shared/key.js";
import { prefer, preferences } from "./preferences.js";

export class ModelSelector {
  constructor() {
    this.element = make("select", { class: "models", "aria-label": "Model", onchange: () => prefer({ model: this.element.value }) });
    this.told = make("span", { class: "error", role: "alert" });
  }

  /** Asks the server. Where it wants a key, asks the user for that. */
  async load() {
    try {
      const { data } = await (await request("v1/models")).json();
      this.#show(data.map((model) => model.id));
      this.told.textContent = "";
    } catch (error) {
      if (error instanceof ApiError && error.status === 401 && (await askKey(error.message))) return this.load();
      this.told.textContent = error.message;
    }
    return undefined;
  }

  #show(names) {
    this.element.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    const { model } = preferences();
    if (names.includes(model)) this.element.value = model;
    else if (model) prefer({ model: "" }); // it is served no more
  }
}
