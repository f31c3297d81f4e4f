// Where conversations are kept: IndexedDB of this browser, or, where it has none (private windows), memory of this tab.
import { Conversation } from "./tree.js";

const NAME = "jaxserve";
const VERSION = 1;

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Opens it. `kept` of what is returned tells whether conversations outlive the tab. */
export async function openDatabase() {
  try {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return new Stored(await done(opening));
  } catch {
    return new Remembered();
  }
}

class Stored {
  kept = true;

  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close(); // a newer page in another tab goes first
  }

  /** Heads of all conversations, the latest first. */
  async heads() {
    const heads = await done(this.database.transaction("conversations").objectStore("conversations").getAll());
    return heads.sort((one, other) => other.updated - one.updated);
  }

  async load(id) {
    const transaction = this.database.transaction(["conversations", "messages"]);
    const head = done(transaction.objectStore("conversations").get(id));
    const messages = await done(transaction.objectStore("messages").index("conversation").getAll(id));
    messages.sort((one, other) => one.created - other.created);
    const found = await head;
    return found ? new Conversation(found, messages) : null;
  }

  /** Writes a conversation's head and those of its messages that are given, together. */
  async save(conversation, messages = []) {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").put(conversation.head());
    for (const message of messages) transaction.objectStore("messages").put(message);
    await finished(transaction);
  }

  async removeMessages(conversation, ids) {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").put(conversation.head());
    for (const id of ids) transaction.objectStore("messages").delete(id);
    await finished(transaction);
  }

  async remove(id) {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    transaction.objectStore("conversations").delete(id);
    const messages = transaction.objectStore("messages");
    for (const key of await done(messages.index("conversation").getAllKeys(id))) messages.delete(key);
    await finished(transaction);
  }

  /** Calls `visit` with every message, one at a time, so that no more than one is in memory. */
  async each(visit) {
    const cursor = this.database.transaction("messages").objectStore("messages").openCursor();
    await new Promise((resolve, reject) => {
      cursor.onerror = () => reject(cursor.error);
      cursor.onsuccess = () => {
        if (!cursor.result) return resolve();
        visit(cursor.result.value);
        return cursor.result.continue();
      };
    });
  }
}

class Remembered {
  kept = false;
  #conversations = new Map();

  async heads() {
    const heads = [...this.#conversations.values()].map((conversation) => conversation.head());
    return heads.sort((one, other) => other.updated - one.updated);
  }

  async load(id) {
    return this.#conversations.get(id) ?? null;
  }

  async save(conversation) {
    this.#conversations.set(conversation.id, conversation);
  }

  async removeMessages() { /* the conversation itself is what is kept */ }

  async remove(id) {
    this.#conversations.delete(id);
  }

  async each(visit) {
    for (const conversation of this.#conversations.values()) for (const message of conversation.messages.values()) visit(message);
  }
}
