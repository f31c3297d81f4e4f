// The figures at the top, of the moment that is looked at.
import { make } from "../shared/dom.js";
import { count, duration, percent, rate } from "./format.js";
import { firstAt, gaps, quantile } from "./turns.js";

const NAMES = {
  running: "running", waiting: "waiting", rate: "output tokens/s", generated: "output tokens", gap: "between tokens",
  pages: "pages in use", hits: "prefix hits", weights: "weights",
};
const LATELY = 5; // seconds that rates are taken of

export class Figures {
  constructor(record, view) {
    this.record = record;
    this.view = view;
    this.values = Object.fromEntries(Object.keys(NAMES).map((name) => [name, make("dd", { "data-figure": name }, "–")]));
    this.element = make("dl", { class: "figures" }, Object.entries(NAMES).map(([name, label]) => make("div", {}, make("dt", {}, label), this.values[name])));
  }

  show() {
    const sample = this.record.sampleAt(this.view.moment());
    if (!sample) return;
    const turns = lately(this.record, this.view);
    const seconds = turns.length ? Math.max(0.25, Math.min(LATELY, sample.clock - turns[0].began)) : LATELY;
    const tokens = turns.reduce((sum, turn) => sum + turn.generated, 0);
    const texts = {
      running: count(sample.running), waiting: count(sample.waiting), rate: rate(tokens / seconds), generated: count(sample.generated),
      gap: duration(quantile(gaps(turns), 0.5)), pages: percent(sample.pages.total ? sample.pages.running / sample.pages.total : 0),
      hits: percent(sample.prefix_queries ? sample.prefix_hits / sample.prefix_queries : null),
      weights: sample.paused ? "paused" : sample.weightVersion === null ? "as loaded" : String(sample.weightVersion),
    };
    for (const [name, text] of Object.entries(texts)) if (this.values[name].textContent !== text) this.values[name].textContent = text;
  }
}

/** Turns of the last seconds before the moment that is looked at. */
export function lately(record, view, seconds = LATELY) {
  const { turns } = record;
  const end = view.live ? record.samples.at(-1)?.clock ?? 0 : view.moment();
  return turns.slice(firstAt(turns, end - seconds), view.live ? undefined : firstAt(turns, end) + 1);
}
