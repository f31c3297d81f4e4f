// What an engine died of, where its last steps are, and how to run them again.
import { make } from "../shared/dom.js";

export class Failure {
  constructor(announce) {
    this.announce = announce;
    this.state = make("p", { class: "state", hidden: true });
    this.reason = make("p");
    this.dump = make("p");
    this.command = make("code");
    this.copy = make("button", { type: "button", onclick: () => this.copied() }, "Copy");
    this.how = make("div", { class: "command" }, make("pre", { tabindex: "0", role: "region", "aria-label": "Command to replay the dump" }, this.command), this.copy);
    this.hide = make("button", { type: "button", class: "quiet", onclick: () => { this.seen = this.of; this.death.hidden = true; } }, "Hide");
    this.death = make("section", { class: "panel death", "aria-labelledby": "death-title", hidden: true },
      make("div", { class: "panel-head" }, make("h2", { id: "death-title" }, "An engine died"), this.hide), this.reason, this.dump, this.how);
    this.element = make("div", { class: "failures" }, this.state, this.death);
    this.of = 0; // Unix time of the death that is shown
    this.seen = 0;
    this.said = "";
  }

  /** `trouble` is what keeps the page from knowing more; "" for nothing. */
  show(frame, trouble) {
    const text = trouble || (frame?.failure ?? "") || (frame?.stalled ? `The engine has not turned for ${frame.stalled.toFixed(0)} s.` : "");
    this.state.hidden = !text;
    if (this.state.textContent !== text) this.state.textContent = text;
    const kind = text.replaceAll(/\d+/g, "");
    if (kind !== this.said) this.announce(text || "The engine is there again.");
    this.said = kind;
    const death = frame?.death;
    if (!death || death.unix === this.of) return;
    this.of = death.unix;
    this.death.hidden = death.unix === this.seen;
    this.reason.textContent = `${new Date(1000 * death.unix).toLocaleString("en-GB")}: ${death.reason}`;
    this.dump.textContent = death.dump ? "Its last steps are in a file on its machine, prompts included. This runs them again; MODEL is the checkpoint that was served:" : "Its last steps were not written down (--record-steps).";
    this.how.hidden = !death.dump;
    this.command.textContent = death.dump ? `python -m jaxserve.simulate --replay ${quoted(death.dump)} MODEL --replay-on model` : "";
  }

  async copied() {
    try {
      await navigator.clipboard.writeText(this.command.textContent);
      this.announce("Copied.");
    } catch {
      getSelection().selectAllChildren(this.command); // where the browser does not let pages copy
    }
  }
}

/** As one word of a shell. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
