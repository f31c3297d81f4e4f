// The field in which one writes, and the button that sends or stops.
import { make } from "../shared/dom.js";
import { icon } from "./icons.js";

const TALLEST = 240; // pixels

/** `send(text)` says whether the text was taken; `stop()` ends the answer that runs. */
export class Composer {
  constructor({ send, stop }) {
    this.send = send;
    this.stop = stop;
    this.running = false;
    this.field = make("textarea", { id: "composer", rows: "1", placeholder: "Ask something", "aria-label": "Message", enterkeyhint: "send", oninput: () => this.#fit(), onkeydown: (event) => this.#key(event) });
    this.button = make("button", { type: "submit", class: "primary send" });
    this.element = make("form", { class: "composer", onsubmit: (event) => this.#submit(event) }, this.field, this.button);
    this.show(false);
  }

  /** Whether an answer runs that can be stopped. */
  show(running) {
    this.running = running;
    const label = running ? "Stop" : "Send";
    if (this.button.title === label) return;
    this.button.replaceChildren(icon(running ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }

  focus() {
    this.field.focus();
  }

  // Where there is no real keyboard, Enter is a new line: there is no Shift to hold.
  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    if (!this.running) this.element.requestSubmit();
  }

  async #submit(event) {
    event.preventDefault();
    if (this.running) {
      this.stop();
      return;
    }
    const text = this.field.value.trim();
    if (!text || !(await this.send(text))) return;
    this.field.value = "";
    this.#fit();
  }

  #fit() {
    this.field.style.setProperty("height", "auto");
    this.field.style.setProperty("height", `${Math.min(TALLEST, this.field.scrollHeight + 2)}px`);
  }
}
