// The chat page: its parts, and what they have to do with each other.
import { announcer, make } from "../shared/dom.js";
import { setSetting, setting } from "../shared/settings.js";
import { themeButton } from "../shared/theme.js";
import { Answers } from "./answers.js";
import { Composer } from "./composer.js";
import { openDatabase } from "./database.js";
import { confirmed } from "./dialogs.js";
import { listenToKeys, showHelp } from "./help.js";
import { icon } from "./icons.js";
import { ModelSelector } from "./models.js";
import { preferences } from "./preferences.js";
import { SettingsPanel } from "./settings_panel.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { schemaProblem, toolsProblem } from "./tools.js";
import { Conversation } from "./tree.js";

const SAID = 500; // characters of an answer that are read out
const NARROW = matchMedia("(max-width: 820px)");

class Page {
  constructor(database) {
    this.database = database;
    this.open = new Map(); // conversations in memory: the one that is shown, and those with answers on their way
    this.say = announcer();
    this.answers = new Answers(database, { changed: (...what) => this.#changed(...what), ended: (...what) => this.#ended(...what) });
    this.thread = new Thread((name, ...what) => this.#act(name, ...what));
    this.composer = new Composer({ send: (text) => this.#send(text), stop: () => this.#stop() });
    this.sidebar = new Sidebar(database, {
      open: (id) => this.show(id), begin: () => this.begin(), help: showHelp,
      rename: (id, title) => this.#rename(id, title), remove: (id) => this.#remove(id),
    });
    this.models = new ModelSelector();
    this.settings = new SettingsPanel({ changed: () => this.#showSet(), keyChanged: () => this.models.load() });
    this.#build();
    this.begin();
  }

  #build() {
    const tool = (name, label, act, more = {}) => make("button", { type: "button", class: `quiet icon-button ${name}`, "aria-label": label, title: label, onclick: act, ...more }, icon(name));
    this.menu = tool("menu", "Conversations", () => this.#toggleSidebar(), { "aria-controls": "sidebar", "aria-expanded": "false" });
    this.set = make("span", { class: "set", hidden: true });
    const top = make("header", { class: "top" }, this.menu, make("h1", {}, "jaxserve"),
      make("nav", { "aria-label": "Pages" }, make("a", { href: "./", "aria-current": "page" }, "Chat"), make("a", { href: "engine" }, "Engine")),
      make("span", { class: "space" }), this.models.told, this.models.element, this.set,
      tool("settings", "Settings", () => this.settings.open()), themeButton());
    this.shade = make("div", { class: "shade", hidden: true, onclick: () => this.#toggleSidebar(false) });
    this.main = make("main", { class: "main" }, this.thread.element, this.thread.down, this.composer.element);
    this.thread.empty.append(make("p", {}, "What would you like to know?"));
    if (!this.database.kept) this.thread.empty.append(make("p", { class: "quiet-text" }, "This browser stores nothing here: conversations last as long as this tab."));
    document.getElementById("chat").append(top, make("div", { class: "under" }, this.sidebar.element, this.shade, this.main));
    NARROW.addEventListener("change", () => this.#toggleSidebar(false));
    listenToKeys({
      begin: () => this.begin(), help: showHelp, escape: () => this.#escape(),
      search: () => { this.#toggleSidebar(true); this.sidebar.search.focus(); },
    });
    this.#toggleSidebar(false);
    this.#showSet();
  }

  // A drawer on narrow screens, out of reach while it is closed.
  #toggleSidebar(open = !this.sidebar.element.classList.contains("open")) {
    const drawer = NARROW.matches;
    const shown = open && drawer;
    this.sidebar.element.classList.toggle("open", shown);
    this.sidebar.element.inert = drawer && !shown;
    this.main.inert = shown;
    this.shade.hidden = !shown;
    this.menu.setAttribute("aria-expanded", String(shown));
    if (shown) this.sidebar.element.querySelector("button").focus();
  }

  /** A new conversation, which is stored when it has a message. */
  begin() {
    this.#present(new Conversation());
    this.composer.focus();
  }

  async show(id) {
    const conversation = this.open.get(id) ?? (await this.database.load(id));
    if (!conversation) return this.begin();
    this.#present(conversation);
    for (const message of conversation.messages.values()) if (message.state === "streaming") this.answers.resume(conversation, message);
    return undefined;
  }

  #present(conversation) {
    const before = this.conversation;
    if (before && ![...before.messages.values()].some((message) => message.state === "streaming")) this.open.delete(before.id);
    this.conversation = conversation;
    this.open.set(conversation.id, conversation);
    setSetting("conversation", conversation.messages.size ? conversation.id : "");
    this.#toggleSidebar(false);
    this.thread.open(conversation);
    this.sidebar.update(conversation.id);
    this.#showRunning();
  }

  // What the settings hold that would be refused is told before it is sent.
  #ready() {
    const { schema, tools } = preferences();
    const field = schemaProblem(schema) ? "set-schema" : toolsProblem(tools) ? "set-tools" : null;
    if (field) this.settings.open(field);
    return field === null;
  }

  async #send(text) {
    if (!this.#ready()) return false;
    const { conversation } = this;
    await this.#ask(conversation, conversation.path().at(-1)?.id ?? "", text);
    return true;
  }

  async #ask(conversation, parent, text) {
    const message = conversation.add(parent, "user", { content: text });
    await this.database.save(conversation, [message]);
    setSetting("conversation", conversation.id);
    this.#answer(conversation, message);
    this.sidebar.update();
  }

  #answer(conversation, message) {
    this.answers.answer(conversation, message);
    this.thread.update();
    this.thread.toEnd();
    this.#showRunning();
  }

  async #act(name, message, ...more) {
    const { conversation } = this;
    if (["again", "edit", "continue"].includes(name) && !this.#ready()) return;
    if (name === "edit") await this.#ask(conversation, message.parent, more[0]);
    else if (name === "again") this.#answer(conversation, conversation.messages.get(message.parent));
    else if (name === "continue") this.answers.goOn(conversation, message);
    else if (name === "reconnect") this.answers.resume(conversation, Object.assign(message, { state: "streaming" }));
    else if (name === "answer") await this.answers.answerCall(conversation, message, ...more);
    else if (name === "branch") await this.#choose(message);
    else if (name === "delete") await this.#deleteMessage(message);
    this.#showRunning();
  }

  async #choose(message) {
    this.conversation.chosen.set(message.parent, message.id);
    await this.database.save(this.conversation);
    this.thread.update();
    this.thread.view(message)?.foot.querySelector(".branches button:enabled")?.focus();
  }

  async #deleteMessage(message) {
    if (!(await confirmed("Delete message?", "It is deleted with all that follows it on its branches.", "Delete"))) return;
    const gone = this.conversation.remove(message);
    for (const id of gone) this.answers.stop({ id });
    await this.database.removeMessages(this.conversation, gone);
    this.thread.update();
    this.composer.focus();
  }

  async #rename(id, title) {
    const conversation = this.open.get(id) ?? (await this.database.load(id));
    conversation.rename(title);
    await this.database.save(conversation);
    await this.sidebar.update();
  }

  async #remove(id) {
    const conversation = this.open.get(id);
    if (conversation) conversation.removed = true; // nothing of it is stored any more
    for (const message of conversation?.messages.values() ?? []) this.answers.stop(message);
    this.open.delete(id);
    await this.database.remove(id);
    if (id === this.conversation.id) this.begin();
    else await this.sidebar.update();
  }

  #running() {
    return this.conversation.path().filter((message) => this.answers.isRunning(message));
  }

  #stop() {
    for (const message of this.#running()) this.answers.stop(message);
    this.composer.focus();
  }

  #escape() {
    if (this.sidebar.element.classList.contains("open")) {
      this.#toggleSidebar(false);
      this.menu.focus();
    } else this.#stop();
  }

  #changed(conversation, message) {
    if (conversation !== this.conversation) return;
    if (!this.thread.view(message) && conversation.path().includes(message)) this.thread.update();
    this.thread.change(message);
    this.#showRunning();
  }

  #ended(conversation, message) {
    if (conversation !== this.conversation) this.open.delete(conversation.id);
    else this.say({ done: `Answer: ${message.content.slice(0, SAID)}`, stopped: "Stopped" }[message.state] ?? `No answer: ${message.error}`);
    this.#showRunning();
    this.sidebar.update();
  }

  #showRunning() {
    this.composer.show(this.#running().length > 0);
  }

  // That an answer has to have a form, or may call tools, is seen without opening the settings.
  #showSet() {
    const { schema, calculator, tools, system } = preferences();
    const parts = [system.trim() && "system prompt", schema.trim() && "JSON schema", (calculator || tools.trim()) && "tools"].filter(Boolean);
    this.set.textContent = parts.join(" · ");
    this.set.hidden = parts.length === 0;
  }
}

const last = setting("conversation", "");
const page = new Page(await openDatabase());
performance.mark("usable"); // benchmarks look at it
page.models.load();
if (last) page.show(last);
