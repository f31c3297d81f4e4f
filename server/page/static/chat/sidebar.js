// The list of conversations: found, renamed, deleted, written to files and read from them.
import { make } from "../shared/dom.js";
import { confirmed, askText, tell } from "./dialogs.js";
import { fromFile, toFile } from "./exchange.js";
import { icon } from "./icons.js";

const SEARCH_AFTER = 150; // milliseconds without a key
const AROUND = 40; // characters shown around what was found

/** `open(id)`, `begin()`, `rename(id, title)` and `remove(id)` do what the user wants. */
export class Sidebar {
  #searching = 0;

  constructor(database, { open, begin, rename, remove, help }) {
    Object.assign(this, { database, open, begin, rename, remove });
    this.current = null;
    this.search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations", "aria-keyshortcuts": "Control+K", oninput: () => this.#searchSoon() });
    this.list = make("ul", { class: "conversations" });
    this.told = make("p", { class: "quiet-text told", role: "status" });
    this.file = make("input", { type: "file", accept: "application/json,.json", hidden: true, "aria-label": "File to import", onchange: () => this.#import() });
    this.element = make("aside", { class: "sidebar", id: "sidebar", "aria-label": "Conversations" },
      make("button", { type: "button", class: "new", "aria-keyshortcuts": "Control+Shift+O", onclick: begin }, icon("plus"), "New chat"),
      make("div", { class: "search" }, icon("search"), this.search),
      this.told, this.list,
      make("div", { class: "sidebar-foot" },
        make("button", { type: "button", class: "quiet", onclick: () => this.file.click() }, icon("import"), "Import"),
        make("button", { type: "button", class: "quiet", onclick: () => this.#export() }, icon("export"), "Export all"),
        make("button", { type: "button", class: "quiet", "aria-keyshortcuts": "Control+/", onclick: help }, icon("help"), "Help"), this.file));
  }

  /** Shows the list as it is stored now, or what of it is searched for. */
  async update(current = this.current) {
    this.current = current;
    const mine = (this.#searching += 1);
    const words = this.search.value.trim().toLowerCase();
    const heads = await this.database.heads();
    const found = words ? await this.#found(heads, words) : heads.map((head) => ({ head }));
    if (mine !== this.#searching) return; // another search has begun
    this.told.textContent = words ? `${found.length} found` : heads.length ? "" : "No conversations yet.";
    this.list.replaceChildren(...found.map((one) => this.#item(one)));
  }

  async #found(heads, words) {
    const texts = new Map();
    await this.database.each(({ conversation, content }) => {
      if (!texts.has(conversation) && content.toLowerCase().includes(words)) texts.set(conversation, snippet(content, words));
    });
    return heads.filter((head) => texts.has(head.id) || head.title.toLowerCase().includes(words)).map((head) => ({ head, text: texts.get(head.id) }));
  }

  #item({ head, text }) {
    const current = head.id === this.current;
    const tool = (name, label, act) => make("button", { type: "button", class: "quiet icon-button", "aria-label": `${label} ${head.title}`, title: label, onclick: act }, icon(name));
    return make("li", { class: current ? "current" : null },
      make("button", { type: "button", class: "quiet open", "aria-current": current ? "true" : null, onclick: () => this.open(head.id) },
        make("span", { class: "title" }, head.title), text ? make("span", { class: "snippet" }, text) : null),
      make("span", { class: "tools" },
        tool("edit", "Rename", () => this.#rename(head)), tool("export", "Export", () => this.#export(head)), tool("trash", "Delete", () => this.#delete(head))));
  }

  #searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), SEARCH_AFTER);
  }

  async #rename(head) {
    const title = await askText("Rename conversation", head.title, "Rename");
    if (title !== null) await this.rename(head.id, title);
  }

  async #delete(head) {
    if (!(await confirmed("Delete conversation?", `“${head.title}” and all of its messages are deleted from this browser.`, "Delete"))) return;
    await this.remove(head.id);
  }

  async #export(head) {
    const heads = head ? [head] : await this.database.heads();
    const conversations = [];
    for (const { id } of heads) conversations.push(await this.database.load(id));
    const url = URL.createObjectURL(new Blob([toFile(conversations.filter(Boolean))], { type: "application/json" }));
    const name = head ? fileName(head.title) : "conversations";
    make("a", { href: url, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async #import() {
    const [file] = this.file.files;
    this.file.value = "";
    try {
      const conversations = fromFile(await file.text());
      for (const one of conversations) await this.database.save(one, [...one.messages.values()]);
      this.search.value = "";
      await this.update();
      this.told.textContent = `${conversations.length} imported.`;
    } catch (error) {
      await tell("Nothing was imported", error.message);
    }
  }
}

function snippet(content, words) {
  const at = content.toLowerCase().indexOf(words);
  const start = Math.max(0, at - AROUND);
  return `${start ? "…" : ""}${content.slice(start, at + words.length + AROUND).replace(/\s+/g, " ").trim()}…`;
}

function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
}
