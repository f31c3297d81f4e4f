// One message: who, what, what can be done with it, and how long it took.
import { make } from "../shared/dom.js";
import { answersTo } from "./answers.js";
import { Blocks } from "./blocks.js";
import { CallsView } from "./calls_view.js";
import { copyButton } from "./copying.js";
import { icon } from "./icons.js";
import { tokenView } from "./token_view.js";

const SLOWEST_SHARE = 4; // drawing takes at most one part in so many of the time
const SHORTEST = 50; // milliseconds of an answer whose tokens a second can be told: what came at once says nothing of that
const NOTICES = { stopped: "Stopped.", broken: "The connection broke, and the server has no more of this answer." };
const FINISHES = { length: "Cut off at the most tokens it may have.", deadline_exceeded: "Cut off: it took too long." };

export class MessageView {
  #frame = null;
  #text = null;
  #rested = 0;

  /** `act(name, message, ...)` is called for what the user wants of it. */
  constructor(message, act) {
    this.message = message;
    this.act = act;
    this.user = message.role === "user";
    this.body = make("div", { class: this.user ? "body plain-text" : "body" });
    this.notice = make("div", { class: "notice" });
    this.foot = make("div", { class: "foot" });
    this.title = make("h2", {}, this.user ? "You" : message.model || "Assistant");
    this.element = make("article", { class: `message ${message.role}`, "data-id": message.id }, this.title, this.body, this.notice, this.foot);
    if (!this.user) this.#prepare();
  }

  #prepare() {
    this.thought = make("div", { class: "blocks" });
    this.thinking = make("details", { class: "reasoning", hidden: true, ontoggle: () => this.draw() }, make("summary", {}, "Thinking"), this.thought);
    this.text = make("div", { class: "blocks" });
    this.calls = new CallsView(this.message, this.act);
    this.body.append(this.thinking, this.text, this.calls.element);
    this.thoughtBlocks = new Blocks(this.thought);
    this.blocks = new Blocks(this.text);
  }

  /** Draws it again with the next frame, or later, where the last drawings took long. */
  change(conversation) {
    this.conversation = conversation;
    if (this.#frame !== null) return;
    this.#frame = requestAnimationFrame((now) => {
      this.#frame = null;
      if (this.message.state === "streaming" && now < this.#rested) {
        this.change(conversation);
        return;
      }
      const begun = performance.now();
      this.draw();
      this.#rested = performance.now() + SLOWEST_SHARE * (performance.now() - begun);
      this.element.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
    });
  }

  draw() {
    const { message } = this;
    const streaming = message.state === "streaming";
    this.element.classList.toggle("streaming", streaming);
    this.element.setAttribute("aria-busy", String(streaming));
    if (this.user) this.#drawText(message.content);
    else this.#drawAnswer(streaming);
    this.#drawNotice();
    if (!streaming || !this.foot.childElementCount) this.#drawFoot();
  }

  #drawText(text) {
    if (this.editing || text === this.#text) return;
    this.#text = text;
    this.body.textContent = text;
  }

  #drawAnswer(streaming) {
    const { message } = this;
    if (message.model) this.title.textContent = message.model;
    this.thinking.hidden = !message.reasoning;
    if (message.reasoning) {
      const over = Boolean(message.content || message.toolCalls || !streaming);
      this.thinking.firstChild.textContent = over ? "Thought" : "Thinking…";
      if (this.thinking.open) this.thoughtBlocks.update(message.reasoning, streaming);
    }
    this.text.hidden = Boolean(this.tokens);
    if (!this.tokens) this.blocks.update(message.content, streaming);
    const answers = message.toolCalls ? answersTo(this.conversation, message) : [];
    this.calls.draw(answers, message.state === "done");
  }

  #drawNotice() {
    const { message } = this;
    const { state } = message;
    const parts = [];
    if (state === "streaming" && message.waiting) parts.push("The connection broke. Trying again…");
    else if (state === "streaming" && !message.content && !message.reasoning && !message.toolCalls) parts.push(make("span", { class: "dots", role: "img", "aria-label": "Waiting for the first token" }));
    else if (state === "error") parts.push(message.error || "Something went wrong.", this.#button("Retry", "again"));
    else if (state === "broken") parts.push(...this.#broken());
    else if (state === "stopped") parts.push(NOTICES.stopped, this.#continue());
    else if (FINISHES[message.finish]) parts.push(FINISHES[message.finish], this.#continue());
    else if (state === "done" && !this.user && !message.content && !message.toolCalls) parts.push("The answer is empty.");
    this.notice.className = `notice ${state}`;
    this.notice.replaceChildren(...parts.filter(Boolean));
    this.notice.hidden = parts.length === 0;
  }

  #broken() {
    if (this.message.unreached) return ["The server could not be reached again.", this.#button("Reconnect", "reconnect"), this.#button("Regenerate", "again")];
    return [NOTICES.broken, this.#continue(), this.#button("Regenerate", "again")];
  }

  // Only text can be gone on with; half a call cannot.
  #continue() {
    return this.message.content && !this.message.toolCalls ? this.#button("Continue", "continue") : null;
  }

  #button(label, name) {
    return make("button", { type: "button", onclick: () => this.act(name, this.message) }, label);
  }

  #tool(name, label, act, more = {}) {
    return make("button", { type: "button", class: "quiet icon-button", "aria-label": label, title: label, onclick: act, ...more }, icon(name));
  }

  #drawFoot() {
    const { message } = this;
    const parts = [this.#branches()];
    if (message.state !== "streaming") {
      parts.push(copyButton("Copy message", () => message.content));
      if (this.user) parts.push(this.#tool("edit", "Edit and send again", () => this.edit()));
      else parts.push(this.#tool("again", "Regenerate", () => this.act("again", message)));
      if (message.logprobs) parts.push(this.#tool("tokens", "Tokens and their probabilities", () => this.toggleTokens(), { "aria-pressed": String(Boolean(this.tokens)) }));
      parts.push(this.#tool("trash", "Delete message and what follows", () => this.act("delete", message)));
      parts.push(statistics(message));
    }
    this.foot.replaceChildren(...parts.filter(Boolean));
  }

  #branches() {
    const siblings = this.conversation.children(this.message.parent);
    if (siblings.length < 2) return null;
    const place = siblings.indexOf(this.message);
    const to = (step, label, name) => this.#tool(name, label, () => this.act("branch", siblings[place + step]), { disabled: !siblings[place + step] });
    return make("span", { class: "branches", role: "group", "aria-label": "Branches" },
      to(-1, "Earlier branch", "left"), make("span", {}, `${place + 1}/${siblings.length}`), to(1, "Later branch", "right"));
  }

  toggleTokens() {
    this.tokens = this.tokens ? (this.tokens.remove(), null) : tokenView(this.message.logprobs);
    if (this.tokens) this.text.after(this.tokens);
    this.draw();
    this.foot.querySelector("[aria-pressed]")?.focus();
  }

  /** Turns a message of the user into a field. */
  edit() {
    if (this.editing) return;
    this.editing = true;
    const field = make("textarea", { class: "edit", "aria-label": "Edit message", rows: String(Math.min(12, this.message.content.split("\n").length + 1)) });
    field.value = this.message.content;
    const close = () => {
      this.editing = false;
      this.#text = null;
      this.body.classList.remove("editing");
      this.draw();
      this.foot.querySelector("[aria-label^=Edit]")?.focus();
    };
    const send = () => {
      const text = field.value.trim();
      close();
      if (text) this.act("edit", this.message, text);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
      if (event.key === "Escape") { event.stopPropagation(); close(); }
    });
    this.body.classList.add("editing");
    this.body.replaceChildren(field, make("div", { class: "buttons" },
      make("button", { type: "button", onclick: close }, "Cancel"), make("button", { type: "button", class: "primary", onclick: send }, "Send")));
    field.focus();
  }
}

function statistics({ usage, times, role }) {
  if (role !== "assistant") return null;
  const parts = [];
  if (Number.isFinite(times?.first)) parts.push([`${(times.first / 1000).toFixed(2)} s`, "time to the first token"]);
  if (usage?.completion > 1 && times?.generating > SHORTEST) parts.push([`${((usage.completion - 1) / times.generating * 1000).toFixed(1)} tokens/s`, "from the first token to the last"]);
  if (Number.isFinite(usage?.prompt)) parts.push([`${usage.prompt} + ${usage.completion} tokens`, "of the prompt, and of the answer"]);
  if (!parts.length) return null;
  return make("span", { class: "statistics" }, parts.map(([text, title]) => make("span", { title }, text)));
}
