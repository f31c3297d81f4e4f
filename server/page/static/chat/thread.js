// The conversation as it is shown: views of the messages of the chosen branch, kept at its end while one is there.
import { make } from "../shared/dom.js";
import { scrolledIn } from "./blocks.js";
import { icon } from "./icons.js";
import { MessageView } from "./message_view.js";

const NEAR_END = 60; // pixels

export class Thread {
  #views = new Map();
  #following = true;

  constructor(act) {
    this.act = act;
    this.list = make("div", { class: "messages" });
    this.empty = make("div", { class: "empty" });
    this.element = make("div", { class: "thread", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0" }, this.empty, this.list);
    scrolledIn(this.element);
    this.down = make("button", { class: "to-end", type: "button", hidden: true, "aria-label": "To the end", title: "To the end", onclick: () => this.toEnd() }, icon("down"));
    this.element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.element.addEventListener("wheel", (event) => { if (event.deltaY < 0) this.#following = false; }, { passive: true });
    this.list.addEventListener("drawn", () => this.follow());
    new ResizeObserver(() => this.follow()).observe(this.list);
  }

  /** Shows a conversation, and goes to its end. */
  open(conversation) {
    this.conversation = conversation;
    this.#views.clear();
    this.list.replaceChildren();
    this.update();
    this.toEnd();
  }

  /** Shows what is new on the branch, and takes away what is not on it. */
  update() {
    const path = this.conversation.path().filter((message) => message.role !== "tool");
    const wanted = new Set(path.map((message) => message.id));
    for (const [id, view] of this.#views) {
      if (wanted.has(id)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
    path.forEach((message, place) => {
      const view = this.#views.get(message.id) ?? this.#begin(message);
      view.conversation = this.conversation;
      if (this.list.children[place] !== view.element) this.list.insertBefore(view.element, this.list.children[place] ?? null);
      view.draw();
    });
    this.empty.hidden = path.length > 0;
  }

  #begin(message) {
    const view = new MessageView(message, this.act);
    this.#views.set(message.id, view);
    return view;
  }

  /** A message has changed. */
  change(message) {
    this.#views.get(message.id)?.change(this.conversation);
  }

  view(message) {
    return this.#views.get(message.id);
  }

  toEnd() {
    this.#following = true;
    this.follow();
  }

  follow() {
    if (this.#following) this.element.scrollTop = this.element.scrollHeight;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const left = scrollHeight - clientHeight - scrollTop;
    this.#following = left < NEAR_END;
    this.down.hidden = left < clientHeight / 2;
  }
}
