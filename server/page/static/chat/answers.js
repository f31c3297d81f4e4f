// Answers on their way: begun, stored as they come, resumed, stopped, and gone on with when tools have been called.
import { ApiError } from "../shared/api.js";
import { askKey } from "../shared/key.js";
import { addChunk, bodyFor } from "./completion.js";
import { newId } from "./ids.js";
import { endStream, follow, UNREACHED } from "./resuming.js";
import { ownAnswer } from "./tools.js";

const SAVE_EVERY = 250; // milliseconds
const FORGOTTEN = [404, 409]; // statuses of a server that has the rest of an answer no more
const MOST_ROUNDS = 8; // of tool calls in a row that are answered without the user

/** `changed(conversation, message)` is called for every change of a message, `ended` when an answer is over. */
export class Answers {
  #running = new Map(); // message id -> AbortController

  constructor(database, { changed, ended }) {
    this.database = database;
    this.changed = changed;
    this.ended = ended;
  }

  isRunning(message) {
    return this.#running.has(message?.id);
  }

  /** A new answer behind a message. */
  async answer(conversation, parent) {
    const before = conversation.pathTo(parent);
    const message = conversation.add(parent.id, "assistant", { state: "streaming", stream: { id: newId(), last: 0 } });
    await this.#run(conversation, message, bodyFor(before));
  }

  /** The rest of an answer that broke off. */
  async goOn(conversation, message) {
    const body = bodyFor(conversation.pathTo(message), true);
    Object.assign(message, { stream: { id: newId(), last: 0 }, usage: undefined, logprobs: undefined });
    await this.#run(conversation, message, body);
  }

  /** What came meanwhile of an answer that the page had lost sight of. Where another tab looks after it, this waits for that. */
  async resume(conversation, message) {
    if (this.isRunning(message)) return;
    await alone(message.id, async () => {
      const stored = (await this.database.load(conversation.id))?.messages.get(message.id);
      if (stored) Object.assign(message, stored);
      if (message.state === "streaming") await this.#run(conversation, message, null, false);
      else this.changed(conversation, message);
    });
  }

  stop(message) {
    this.#running.get(message.id)?.abort();
  }

  /** The user's answer to a call of a tool. */
  async answerCall(conversation, message, call, content) {
    const last = answersTo(conversation, message).at(-1) ?? message;
    const answer = conversation.add(last.id, "tool", { toolCallId: call.id, content });
    await this.database.save(conversation, [answer]);
    this.changed(conversation, message);
    await this.#afterCalls(conversation, message);
  }

  async #run(conversation, message, body, locked = true) {
    const controller = new AbortController();
    this.#running.set(message.id, controller);
    Object.assign(message, { state: "streaming", error: undefined, finish: undefined, waiting: false });
    this.changed(conversation, message);
    await this.#save(conversation, message);
    const work = () => this.#stream(conversation, message, body, controller.signal);
    await (locked ? alone(message.id, work) : work());
    this.#running.delete(message.id);
    message.waiting = false;
    await this.#save(conversation, message);
    this.changed(conversation, message);
    this.ended(conversation, message);
    if (message.state === "done" && message.toolCalls) await this.#afterCalls(conversation, message);
  }

  async #stream(conversation, message, body, signal) {
    const clock = new Clock(message, body !== null);
    const waiting = (whether) => {
      if (whether !== message.waiting) this.changed(conversation, Object.assign(message, { waiting: whether }));
    };
    let saving = null; // not for each token, but soon after it
    const saveSoon = () => {
      saving ??= setTimeout(() => {
        saving = null;
        this.#save(conversation, message);
      }, SAVE_EVERY);
    };
    try {
      for await (const event of follow(message.stream, { body, signal, waiting })) {
        if (addChunk(message, JSON.parse(event.data))) clock.token();
        if (event.id) message.stream.last = Number(event.id); // stored with what it brought, so that neither goes without the other
        this.changed(conversation, message);
        saveSoon();
      }
      message.state = "done";
    } catch (error) {
      await this.#failed(conversation, message, body, signal, error);
    } finally {
      clearTimeout(saving);
    }
  }

  async #failed(conversation, message, body, signal, error) {
    if (signal.aborted) {
      message.state = "stopped";
      await endStream(message.stream);
    } else if (error instanceof ApiError && error.status === 401 && (await askKey(error.message))) {
      await this.#stream(conversation, message, body, signal);
    } else {
      const begun = message.stream.last > 0 || body === null;
      message.unreached = begun && UNREACHED.includes(error.status); // the server may still have the rest
      message.state = message.unreached || (begun && FORGOTTEN.includes(error.status)) ? "broken" : "error";
      message.error = error.message;
    }
  }

  async #afterCalls(conversation, message) {
    const calls = message.toolCalls.filter(Boolean);
    for (const call of calls) {
      const answered = answersTo(conversation, message);
      if (answered.some((one) => one.toolCallId === call.id)) continue;
      const content = ownAnswer(call);
      if (content === null) continue;
      const answer = conversation.add((answered.at(-1) ?? message).id, "tool", { toolCallId: call.id, content });
      await this.database.save(conversation, [answer]);
    }
    this.changed(conversation, message);
    const answered = answersTo(conversation, message);
    if (answered.length === calls.length && roundsOf(conversation, message) <= MOST_ROUNDS) await this.answer(conversation, answered.at(-1));
  }

  async #save(conversation, message) {
    if (conversation.removed || !conversation.messages.has(message.id)) return;
    const { waiting, ...stored } = message;
    await this.database.save(conversation, [stored]).catch((error) => console.warn("not stored:", error));
  }
}

/** The answers that a message's calls have, on the branch that is shown. */
export function answersTo(conversation, message) {
  const found = [];
  for (let one = conversation.next(message.id); one?.role === "tool"; one = conversation.next(one.id)) found.push(one);
  return found;
}

function roundsOf(conversation, message) {
  const path = conversation.pathTo(message);
  return path.slice(path.findLastIndex((one) => one.role === "user") + 1).filter((one) => one.role === "assistant").length;
}

// One tab at a time looks after a message; the next gets it when that one is closed. Without locks (no secure context) all do.
function alone(id, work) {
  return navigator.locks ? navigator.locks.request(`jaxserve message ${id}`, work) : work();
}

// Milliseconds to the first token, and from there to the last; unknown where the page was not there all the time.
class Clock {
  constructor(message, fromBeginning) {
    this.message = message;
    this.begun = fromBeginning ? performance.now() : null;
    message.times = fromBeginning ? {} : { first: message.times?.first };
  }

  token() {
    if (this.begun === null) return;
    const now = performance.now();
    this.first ??= now;
    this.message.times = { first: this.first - this.begun, generating: now - this.first };
  }
}
