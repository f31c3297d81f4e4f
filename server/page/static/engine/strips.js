// Strips below the timeline, of the same seconds: rows, waiting, output tokens a second, pages.
import { make } from "../shared/dom.js";
import { begin, colours } from "./paint.js";
import { firstAt } from "./turns.js";
import { count, percent, rate } from "./format.js";

const HEIGHT = 38, GAP = 8, PIXELS = 2; // a column's width
const KINDS = [
  { name: "rows", of: (turn) => turn.rows, how: "most", show: count },
  { name: "waiting", of: (turn) => turn.waiting, how: "most", show: count },
  { name: "tokens/s", of: (turn) => turn.generated, how: "rate", show: rate },
  { name: "pages used", of: (turn, total) => (total ? 1 - turn.pagesFree / total : 0), how: "most", show: percent, most: 1 },
];

export class Strips {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.canvas = make("canvas", { class: "strips-canvas", "aria-hidden": "true" });
    this.element = make("div", { class: "strips" }, this.canvas);
  }

  draw() {
    const area = begin(this.canvas);
    if (!area) return;
    const { context, width } = area;
    const { turns } = this.record;
    const end = this.view.now(), from = end - this.view.seconds;
    const size = Math.ceil(width / PIXELS);
    const first = firstAt(turns, from), last = firstAt(turns, end);
    const column = (turn) => Math.min(size - 1, Math.max(0, Math.floor(((turn.ended - from) / this.view.seconds) * size)));
    const total = this.record.latest?.now?.pages.total ?? this.record.samples.at(-1)?.pages.total ?? 0;
    const tenth = Math.max(0.1, this.view.seconds / 40); // seconds that a rate is taken of
    KINDS.forEach((kind, place) => {
      const values = new Float64Array(size).fill(NaN);
      if (kind.how === "rate") rates(values, turns, last, tenth, from, this.view.seconds);
      else for (let at = first; at < last; at += 1) {
        const where = column(turns[at]), value = kind.of(turns[at], total);
        if (!(values[where] >= value)) values[where] = value;
      }
      fill(values, turns[first - 1] && kind.how === "most" ? kind.of(turns[first - 1], total) : 0, kind.how);
      this.strip(context, width, place * (HEIGHT + GAP), kind, values);
    });
  }

  strip(context, width, top, kind, values) {
    const { accent, soft, quiet, text, panel } = colours();
    const most = Math.max(kind.most ?? 0, ...values, 1e-9);
    context.fillStyle = panel;
    context.fillRect(0, top, width, HEIGHT);
    const y = (value) => top + HEIGHT - (value / most) * (HEIGHT - 18);
    context.beginPath();
    context.moveTo(0, top + HEIGHT);
    values.forEach((value, place) => {
      context.lineTo(place * PIXELS, y(value));
      context.lineTo((place + 1) * PIXELS, y(value));
    });
    context.lineTo(width, top + HEIGHT);
    context.fillStyle = soft;
    context.fill();
    context.strokeStyle = accent;
    context.lineWidth = 1;
    context.stroke();
    context.textAlign = "left";
    context.fillStyle = quiet;
    context.fillText(kind.name, 4, top + 11);
    context.textAlign = "right";
    context.fillStyle = text;
    context.fillText(`${kind.show(values.at(-1))}  (most ${kind.show(Math.max(0, ...values))})`, width - 4, top + 11);
  }
}

/** Output tokens a second, in slices of the engine's time, which stay what they are while the window moves. */
function rates(values, turns, last, slice, from, seconds) {
  const base = Math.floor(from / slice), sums = new Float64Array(Math.ceil(seconds / slice) + 2);
  const start = firstAt(turns, base * slice); // the first slice began before the window
  for (let place = start; place < last; place += 1) sums[Math.min(sums.length - 1, Math.floor(turns[place].ended / slice) - base)] += turns[place].generated;
  const whole = Math.floor((from + seconds) / slice) - base - 1; // the last that is over
  for (let place = 0; place < values.length; place += 1) {
    const at = Math.floor((from + (place / values.length) * seconds) / slice) - base;
    values[place] = sums[Math.max(0, Math.min(at, whole))] / slice;
  }
}

/** Where no turn was, nothing changed. */
function fill(values, before, how) {
  let value = before;
  for (let place = 0; place < values.length; place += 1) {
    if (Number.isNaN(values[place])) values[place] = value;
    else if (how === "most") value = values[place];
  }
}
