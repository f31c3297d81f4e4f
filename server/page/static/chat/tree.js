// A conversation: messages as a tree, for every edit and every new answer is a branch beside the earlier ones.
import { newId } from "./ids.js";

const TITLE_CHARS = 60;
export const UNTITLED = "New chat";

/**
 * Messages know their parent ("" at the root); `chosen` says which child of a parent is shown, by ids.
 * `messages` is a Map by id, in the order in which they were written. The `state` of one is streaming while its events come, and then
 * done, stopped, broken or error.
 */
export class Conversation {
  constructor({ id = newId(), title = UNTITLED, named = false, created = Date.now(), updated = created, chosen = {} } = {}, messages = []) {
    this.id = id;
    this.title = title;
    this.named = named; // by the user, so that no first message changes it
    this.created = created;
    this.updated = updated;
    this.chosen = new Map(Object.entries(chosen));
    this.messages = new Map(messages.map((message) => [message.id, message]));
  }

  /** What is stored of it besides its messages. */
  head() {
    const { id, title, named, created, updated } = this;
    return { id, title, named, created, updated, chosen: Object.fromEntries(this.chosen) };
  }

  children(parent) {
    return [...this.messages.values()].filter((message) => message.parent === parent);
  }

  /** The message that is shown after `parent`, if any. */
  next(parent) {
    const children = this.children(parent);
    return children.find((child) => child.id === this.chosen.get(parent)) ?? children.at(-1);
  }

  /** The messages that are shown, from the first to the last. */
  path() {
    const shown = [];
    for (let one = this.next(""); one; one = this.next(one.id)) shown.push(one);
    return shown;
  }

  /** The messages before this one, and it, from the first. */
  pathTo(message) {
    const before = [];
    for (let one = message; one; one = this.messages.get(one.parent)) before.unshift(one);
    return before;
  }

  /** A new message behind `parent`, shown from now on. */
  add(parent, role, fields = {}) {
    const created = Math.max(Date.now(), this.#latest() + 1);
    const message = { id: newId(), conversation: this.id, parent, role, content: "", created, state: "done", ...fields };
    this.messages.set(message.id, message);
    this.chosen.set(parent, message.id);
    this.updated = message.created;
    if (role === "user" && !this.named && this.title === UNTITLED) this.title = titleOf(message.content);
    return message;
  }

  // Times tell the order of messages, so no two are the same.
  #latest() {
    return [...this.messages.values()].at(-1)?.created ?? 0;
  }

  /** Takes a message away, with all that follows it. Returns their ids. */
  remove(message) {
    const gone = [message.id];
    for (const id of gone) gone.push(...this.children(id).map((child) => child.id));
    for (const id of gone) {
      this.messages.delete(id);
      this.chosen.delete(id);
    }
    const sibling = this.children(message.parent).at(-1);
    if (sibling) this.chosen.set(message.parent, sibling.id);
    else this.chosen.delete(message.parent);
    return gone;
  }

  rename(title) {
    this.title = title.trim() || UNTITLED;
    this.named = true;
  }
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line || UNTITLED;
}
