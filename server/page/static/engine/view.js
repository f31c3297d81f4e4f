// What of the record is looked at: the latest moment, or one that was chosen.
import { firstAt } from "./turns.js";

const SPANS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600]; // seconds

export class View {
  /** `changed` is called whenever something else is to be seen. */
  constructor(record, changed) {
    this.record = record;
    this.changed = changed;
    this.live = true;
    this.end = 0; // of the window, by the engine's clock, while it is not live
    this.turn = null; // the one that is looked at
    this.chosen = null; // id of the sequence whose life is shown
    this.zoom = SPANS.indexOf(2);
    this.heard = 0; // when the latest frame came, by the page's clock, ms
  }

  get seconds() {
    return SPANS[this.zoom];
  }

  /** The window's end now. It goes on between frames, and never beyond what is known. */
  now() {
    if (!this.live) return this.end;
    const { latest, samples } = this.record;
    const clock = latest?.now ? latest.clock : samples.at(-1)?.clock ?? 0;
    const interval = latest?.interval ?? 0;
    return clock - Math.max(0, interval - (performance.now() - this.heard) / 1000);
  }

  /** The moment whose figures are shown. */
  moment() {
    if (this.live) return Infinity;
    return this.turn ? this.turn.ended : this.end;
  }

  pause() {
    if (!this.live) return;
    this.end = this.now();
    this.live = false;
    this.changed();
  }

  resume() {
    this.live = true;
    this.turn = null;
    this.changed();
  }

  select(turn) {
    this.pause();
    this.turn = turn;
    if (turn && (turn.ended > this.end || turn.began < this.end - this.seconds)) this.end = turn.ended + this.seconds / 2;
    this.changed();
  }

  /** So many turns on, or back. */
  step(count) {
    const { turns } = this.record;
    if (!turns.length) return;
    this.pause();
    const at = this.turn ? turns.indexOf(this.turn) : firstAt(turns, this.end) - (count < 0 ? 0 : 1);
    this.select(turns[Math.min(turns.length - 1, Math.max(0, at + count))]);
  }

  oldest() {
    this.select(this.record.turns[0] ?? null);
  }

  newest() {
    this.select(this.record.turns.at(-1) ?? null);
  }

  zoomBy(steps) {
    const middle = this.turn ? this.turn.began : this.end - this.seconds / 2;
    this.zoom = Math.min(SPANS.length - 1, Math.max(0, this.zoom + steps));
    if (!this.live) this.end = middle + this.seconds / 2;
    this.changed();
  }

  /** Moves the window by seconds. */
  pan(seconds) {
    this.pause();
    const { turns } = this.record;
    const least = turns[0]?.began ?? 0, most = (turns.at(-1)?.ended ?? 0) + this.seconds / 2;
    this.end = Math.min(Math.max(this.end + seconds, least), most);
    this.changed();
  }

  choose(id) {
    this.chosen = this.chosen === id ? null : id;
    this.changed();
  }
}
