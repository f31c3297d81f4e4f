// Markdown that grows: a piece that has not changed is left alone, and one that is far from what is seen is plain text until it comes near.
import { make } from "../shared/dom.js";
import { codePiece } from "./code.js";
import { render } from "./markdown.js";
import { split } from "./splitting.js";

const NEAR = "1200px 0px"; // around what is seen
const SPARE_MS = 4; // that have to be left of a pause for one more piece
const PAUSE_EVERY_MS = 30;

// Safari does not tell of pauses: short ones are made up.
function whenIdle(work) {
  if (globalThis.requestIdleCallback) requestIdleCallback(work);
  else setTimeout((end) => work({ timeRemaining: () => end - performance.now() }), PAUSE_EVERY_MS, performance.now() + PAUSE_EVERY_MS + 2 * SPARE_MS);
}

// What is to become more than plain text: soon, when it is near, or when there is time.
class Later {
  constructor(root) {
    this.waiting = new Set();
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) this.show(entry.target);
    }, { root, rootMargin: NEAR });
    this.scheduled = false;
  }

  add(element) {
    this.waiting.add(element);
    this.observer.observe(element);
    this.schedule();
  }

  forget(element) {
    if (this.waiting.delete(element)) this.observer.unobserve(element);
  }

  show(element) {
    this.forget(element);
    element.piece?.show();
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    whenIdle((pause) => {
      this.scheduled = false;
      for (const element of this.waiting) {
        if (pause.timeRemaining() < SPARE_MS) break;
        if (element.isConnected) this.show(element);
        else this.forget(element);
      }
      if (this.waiting.size) this.schedule();
    });
  }
}

let later = null;

/** Says in which element texts are scrolled, before there are any. */
export function scrolledIn(element) {
  later = new Later(element);
}

class Piece {
  constructor(links) {
    this.element = make("div", { class: "block" });
    this.element.piece = this;
    this.links = links;
    this.key = null;
  }

  set(given, now) {
    this.given = given;
    if (given.key === this.key) {
      if (this.block) this.block.text = given.block.text; // its end has come nearer, elsewhere
      return;
    }
    this.key = given.key;
    this.block = given.block;
    if (now) {
      later.forget(this.element);
      this.show();
    } else {
      this.element.classList.add("plain");
      this.element.textContent = given.source;
      later.add(this.element);
    }
  }

  show() {
    const { source, code } = this.given;
    this.element.classList.remove("plain");
    this.element.classList.toggle("code-part", Boolean(code && !code.first));
    this.element.replaceChildren(code ? codePiece({ ...code, whole: () => this.block.text }) : render(source, this.links));
  }
}

/** The text of one message, below `element`. */
export class Blocks {
  #pieces = [];
  #settled = { characters: 0, pieces: 0 };
  #text = "";
  #links = {};

  constructor(element) {
    this.element = element;
  }

  /** Shows a text. `now` shows its last pieces at once: they are being written, and seen. */
  update(given, now) {
    const text = given.replace(/\r\n?/g, "\n");
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#settled = { characters: 0, pieces: 0 };
    this.#text = text;
    const { characters, pieces: before } = this.#settled;
    const { pieces, settled, links } = split(text.slice(characters));
    Object.assign(this.#links, links);
    pieces.forEach((piece, index) => this.#put(before + index, piece, now && index >= pieces.length - 3));
    for (const piece of this.#pieces.splice(before + pieces.length)) {
      later.forget(piece.element);
      piece.element.remove();
    }
    this.#settled = { characters: characters + settled.characters, pieces: before + settled.pieces };
  }

  #put(index, given, now) {
    let piece = this.#pieces[index];
    if (!piece) {
      piece = new Piece(this.#links);
      this.#pieces.push(piece);
      this.element.append(piece.element);
    }
    piece.set(given, now);
  }
}
