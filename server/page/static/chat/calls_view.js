// The calls of tools in a message, with their answers, or a box for them where only the user can give them.
import { make } from "../shared/dom.js";

export class CallsView {
  #shown = new Map(); // call -> its parts

  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.element = make("div", { class: "calls" });
  }

  /** `answers` are tool messages; `open` says whether missing ones are waited for. */
  draw(answers, open) {
    for (const call of (this.message.toolCalls ?? []).filter(Boolean)) {
      const parts = this.#shown.get(call.id) ?? this.#begin(call);
      parts.name.textContent = call.name;
      parts.given.textContent = pretty(call.arguments);
      this.#drawAnswer(call, parts, answers.find((one) => one.toolCallId === call.id), open);
    }
  }

  #begin(call) {
    const parts = { name: make("strong", {}), given: make("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }), answer: make("div", { class: "call-answer" }), told: null };
    this.element.append(make("div", { class: "call", role: "group", "aria-label": "Tool call" }, make("div", { class: "call-head" }, "calls ", parts.name), parts.given, parts.answer));
    this.#shown.set(call.id, parts);
    return parts;
  }

  #drawAnswer(call, parts, answer, open) {
    const state = answer ? `answer ${answer.content}` : open ? "open" : "none";
    if (parts.told === state) return;
    parts.told = state;
    if (answer) parts.answer.replaceChildren(make("span", { class: "quiet-text" }, "answer "), make("samp", {}, answer.content));
    else if (open) parts.answer.replaceChildren(this.#form(call));
    else parts.answer.replaceChildren();
  }

  #form(call) {
    const field = make("textarea", { rows: "2", "aria-label": `Answer of ${call.name}`, placeholder: "What the tool answers" });
    const send = (event) => {
      event.preventDefault();
      this.act("answer", this.message, call, field.value);
    };
    return make("form", { onsubmit: send }, field, make("button", { type: "submit", class: "primary" }, "Answer"));
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet
  }
}
