// The timeline: what the host did in each turn, and the steps on the device below. Width is time.
import { make } from "../shared/dom.js";
import { begin, between, colours } from "./paint.js";
import { describe, firstAt, phasesOf, prefillShare } from "./turns.js";
import { duration } from "./format.js";

const HOST = { top: 26, height: 40 }, DEVICE = { top: 84, height: 40 };
const AXIS = 138;
const NEAR = 6; // pixels that a pointer may miss a mark by

export class Timeline {
  constructor(record, view, onlook) {
    this.record = record;
    this.view = view;
    this.onlook = onlook; // told of the turn under the pointer, or null
    this.canvas = make("canvas", { class: "timeline-canvas", "aria-hidden": "true" });
    this.element = make("div", {
      class: "timeline", tabindex: "0", role: "slider", "aria-label": "Turns of the engine", "aria-orientation": "horizontal",
      "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "live", onkeydown: (event) => this.key(event),
    }, this.canvas);
    this.drag = null;
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.up(event));
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; });
    this.canvas.addEventListener("pointerleave", () => this.onlook(null));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      view.zoomBy(Math.sign(event.deltaY));
    }, { passive: false });
  }

  key(event) {
    const { view } = this;
    const size = event.shiftKey ? 10 : 1;
    const does = {
      ArrowLeft: () => view.step(-size), ArrowRight: () => view.step(size), ArrowUp: () => view.step(size), ArrowDown: () => view.step(-size),
      PageUp: () => view.step(-100), PageDown: () => view.step(100), Home: () => view.oldest(), End: () => view.newest(),
      " ": () => (view.live ? view.pause() : view.resume()), Escape: () => view.resume(),
      "+": () => view.zoomBy(-1), "=": () => view.zoomBy(-1), "-": () => view.zoomBy(1),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  down(event) {
    this.drag = { x: event.clientX, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { drag, view } = this;
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > NEAR)) {
      drag.moved = true;
      view.pan(((drag.x - event.clientX) / this.canvas.clientWidth) * view.seconds);
      drag.x = event.clientX;
    } else this.onlook(this.turnAt(event));
  }

  up(event) {
    const { drag } = this;
    this.drag = null;
    if (drag && !drag.moved) {
      const turn = this.turnAt(event);
      if (turn) this.view.select(turn);
    }
  }

  turnAt(event) {
    const { turns } = this.record;
    const { view } = this;
    const x = event.offsetX / this.canvas.clientWidth;
    const time = view.now() - view.seconds * (1 - x);
    let turn = turns[firstAt(turns, time)];
    // Below, steps: the one whose result was taken later may have run then.
    if (turn && event.offsetY >= DEVICE.top - 8) turn = turns.slice(turns.indexOf(turn), turns.indexOf(turn) + 4).find((one) => one.collected >= 0 && one.waited >= time) ?? turn;
    const slack = (NEAR / this.canvas.clientWidth) * view.seconds;
    return turn && Math.min(turn.began, turn.stepBegan) - slack <= time ? turn : null;
  }

  /** What a screen reader says of it. */
  tell() {
    const { turns } = this.record;
    const { turn, live } = this.view;
    const at = turn ? turns.indexOf(turn) : turns.length - 1;
    this.element.setAttribute("aria-valuemax", String(Math.max(0, turns.length - 1)));
    this.element.setAttribute("aria-valuenow", String(Math.max(0, at)));
    this.element.setAttribute("aria-valuetext", turn ? describe(turn) : live ? "live" : "paused");
  }

  draw() {
    const area = begin(this.canvas);
    if (!area) return;
    const { context, width } = area;
    const { turns } = this.record;
    const end = this.view.now(), from = end - this.view.seconds;
    const x = (time) => ((time - from) / this.view.seconds) * width;
    const first = Math.max(0, firstAt(turns, from) - 1);
    const last = Math.min(turns.length, firstAt(turns, end) + 3); // steps end with a later turn
    this.frame(context, width, end, x);
    const span = this.record.spans.get(this.view.chosen);
    const chosen = span && span.arrival < end && (span.ended ?? end) > from ? span : null;
    if (last - first > width) this.columns(context, width, turns, first, last, x);
    else for (let place = first; place < last; place += 1) this.turn(context, turns[place], x, chosen);
    this.life(context, width, chosen, x);
    this.marks(context, width, x);
    this.selection(context, x);
  }

  frame(context, width, end, x) {
    const { quiet, line, panel } = colours();
    context.fillStyle = panel;
    for (const lane of [HOST, DEVICE]) context.fillRect(0, lane.top, width, lane.height);
    context.fillStyle = quiet;
    context.textAlign = "left";
    context.fillText("host", 4, HOST.top - 5);
    context.fillText("device", 4, DEVICE.top - 5);
    context.textAlign = "center";
    for (let back = tick(this.view.seconds, width); back < this.view.seconds; back += tick(this.view.seconds, width)) {
      const at = x(end - back);
      context.fillStyle = line;
      context.fillRect(at, HOST.top, 1, AXIS - HOST.top - 8);
      context.fillStyle = quiet;
      if (at > 30 && at < width - 30) context.fillText(`−${duration(back)}`, at, AXIS + 4);
    }
  }

  turn(context, turn, x, chosen) {
    const hue = colours();
    const within = !chosen || (turn.stepBegan >= (chosen.started ?? Infinity) - 1e-3 && turn.stepBegan <= (chosen.ended ?? Infinity));
    for (const [name, from, to] of phasesOf(turn)) {
      if (to <= from) continue;
      context.fillStyle = hue[`phase-${name}`];
      context.fillRect(x(from), HOST.top, Math.max(0.5, x(to) - x(from)), HOST.height);
    }
    if (turn.collected < 0) return;
    const share = prefillShare(turn);
    context.globalAlpha = within ? 1 : 0.25;
    context.fillStyle = share === null ? hue.line : between(hue.decode, hue.prefill, share);
    const left = x(turn.stepBegan), wide = Math.max(0.5, x(turn.waited) - left - (x(turn.waited) - left > 4 ? 1 : 0));
    context.fillRect(left, DEVICE.top, wide, DEVICE.height);
    if (wide > 26 && turn.launchedBy) {
      context.fillStyle = hue.page;
      context.textAlign = "center";
      context.fillText(String(turn.launchedBy.rows), left + wide / 2, DEVICE.top + DEVICE.height / 2 + 4);
    }
    context.globalAlpha = 1;
  }

  /** Where turns are narrower than pixels: what share of each pixel's time went where. */
  columns(context, width, turns, first, last, x) {
    const hue = colours();
    const size = Math.ceil(width), wide = [];
    const phases = Array.from({ length: size }, () => ({}));
    const steps = Array.from({ length: size }, () => ({ busy: 0, prefill: 0 }));
    for (let place = first; place < last; place += 1) {
      const turn = turns[place];
      const column = Math.floor(x(turn.began));
      if (x(turn.ended) - x(turn.began) > 2) {
        wide.push(turn);
        continue;
      }
      if (column < 0 || column >= size) continue;
      for (const [name, from, to] of phasesOf(turn)) phases[column][name] = (phases[column][name] ?? 0) + to - from;
      if (turn.collected < 0) continue;
      const busy = turn.waited - turn.stepBegan;
      steps[column].busy += busy;
      steps[column].prefill += busy * (prefillShare(turn) ?? 0);
    }
    for (const turn of wide) this.turn(context, turn, x, null);
    const pixel = this.view.seconds / width;
    for (let column = 0; column < size; column += 1) {
      let top = HOST.top;
      for (const [name, seconds] of Object.entries(phases[column])) {
        const height = Math.min(1, seconds / pixel) * HOST.height;
        context.fillStyle = hue[`phase-${name}`];
        context.fillRect(column, top, 1, Math.max(0, Math.min(height, HOST.top + HOST.height - top)));
        top += height;
      }
      const { busy, prefill } = steps[column];
      if (!busy) continue;
      const height = Math.min(1, busy / pixel) * DEVICE.height;
      context.fillStyle = between(hue.decode, hue.prefill, prefill / busy);
      context.fillRect(column, DEVICE.top + DEVICE.height - height, 1, height);
    }
  }

  life(context, width, span, x) {
    if (!span) return;
    const { accent } = colours();
    const from = Math.max(-2, x(span.arrival)), to = Math.min(width + 2, span.ended === null ? width + 2 : x(span.ended));
    context.strokeStyle = accent;
    context.lineWidth = 1.5;
    context.strokeRect(from, DEVICE.top - 2, Math.max(1, to - from), DEVICE.height + 4);
  }

  marks(context, width, x) {
    const { warn, bad, quiet } = colours();
    const { marks } = this.record;
    for (let place = marks.length - 1; place >= 0; place -= 1) {
      const at = x(marks[place].clock);
      if (at < 0 || at > width) continue;
      context.fillStyle = { preempted: bad, compiled: warn, missed: warn }[marks[place].kind] ?? quiet;
      context.beginPath();
      context.moveTo(at - 4, 2);
      context.lineTo(at + 4, 2);
      context.lineTo(at, 10);
      context.fill();
      context.fillRect(at - 0.5, 10, 1, DEVICE.top + DEVICE.height - 10);
    }
  }

  selection(context, x) {
    const { turn } = this.view;
    if (!turn) return;
    context.strokeStyle = colours().text;
    context.lineWidth = 2;
    context.strokeRect(x(turn.began), HOST.top - 1, Math.max(2, x(turn.ended) - x(turn.began)), HOST.height + 2);
    if (turn.collected >= 0) context.strokeRect(x(turn.stepBegan), DEVICE.top - 1, Math.max(2, x(turn.waited) - x(turn.stepBegan)), DEVICE.height + 2);
  }
}

/** Seconds between two lines: a round number, some eighty pixels apart. */
function tick(seconds, width) {
  const least = (80 / width) * seconds;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
}
