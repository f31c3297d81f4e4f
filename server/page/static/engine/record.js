// What was seen of the engine: turns, sequences, samples and marks, as much as the page keeps.
import { turnOf } from "./turns.js";
import { plural, shortened, words } from "./format.js";

export const MAX_TURNS = 50_000;
export const SECONDS = 600;
const MAX_SPANS = 2_000, MAX_MARKS = 1_000;

export class Record {
  constructor() {
    this.clear();
  }

  clear() {
    this.turns = [];
    this.spans = new Map(); // by id, in the order in which they came
    this.samples = []; // one a frame: how things stood
    this.marks = []; // {clock, kind, text}: preemptions, compilations, gaps
    this.latest = null; // frame
    this.next = null; // number of the turn that should come next
    this.nextPreemption = null;
    this.steps = new Map(); // launched and not taken yet, by number
  }

  /** Adds a frame of the feed. */
  take(frame) {
    const before = this.latest;
    this.latest = frame;
    if (!frame.now) return;
    if (before?.engine && before.engine !== frame.engine || this.engine && this.engine !== frame.engine) this.anotherEngine(frame);
    this.engine = frame.engine;
    this.addTurns(frame);
    for (const span of frame.spans) this.addSpan(span);
    for (const row of frame.now.rows) this.addRow(row);
    this.addMarks(frame);
    const { rows, ...now } = frame.now;
    this.samples.push({
      clock: frame.clock, unix: frame.unix, generated: frame.generated, programs: frame.programs, speculation: frame.speculation,
      weightVersion: frame.weight_version, paused: frame.paused, ...now,
    });
    this.trim(frame.clock);
  }

  anotherEngine(frame) {
    const last = this.samples.at(-1);
    if (last && frame.clock < last.clock) this.clear(); // of another machine: its clock is another one
    else this.mark(frame.turns[0]?.[0] ?? frame.clock, "start", "another engine");
    this.latest = frame;
    this.next = this.nextPreemption = null;
    this.steps.clear();
    for (const span of this.spans.values()) if (span.ended === null) [span.ended, span.outcome] = [last?.clock ?? frame.clock, "lost"];
  }

  addTurns(frame) {
    if (this.next !== null && frame.first_turn > this.next) {
      this.mark(frame.turns[0]?.[0] ?? frame.clock, "gap", `${plural(frame.first_turn - this.next, "turn")} not seen`);
      this.steps.clear();
    }
    frame.turns.forEach((row, place) => {
      if (typeof row[0] !== "number") return; // a clock that said what is no time
      const turn = turnOf(row, frame.first_turn + place);
      if (turn.collected >= 0) {
        turn.launchedBy = this.steps.get(turn.collected) ?? null;
        this.steps.delete(turn.collected);
      }
      if (turn.step >= 0) this.steps.set(turn.step, { rows: turn.rows, tokens: turn.tokens, prefill: turn.prefill, drafts: turn.drafts });
      this.turns.push(turn);
    });
    this.next = frame.first_turn + frame.turns.length;
  }

  addSpan(told) {
    const span = this.spans.get(told.id);
    // An id may be used again: then it is another request.
    if (span && span.arrival === told.arrival) Object.assign(span, told);
    else this.spans.set(told.id, { pages: 0, preemptions: 0, computed: 0, ...told });
  }

  /** A sequence that runs; one that came before the page did has no span yet. */
  addRow(row) {
    this.addSpan({
      id: row.id, service_class: row.service_class, tenant: row.tenant, prompt_tokens: row.prompt_tokens, arrival: row.arrival,
      tokens: row.output_tokens, started: row.admitted, pages: row.pages, preemptions: row.preemptions, computed: row.computed,
      ended: null, outcome: "", ...(this.spans.has(row.id) ? {} : { first_token: null }),
    });
  }

  addMarks(frame) {
    frame.preempted.forEach((one, place) => {
      if (this.nextPreemption !== null && frame.first_preemption + place < this.nextPreemption) return;
      this.mark(one.time, "preempted", `${shortened(one.id)} preempted: ${reasonOf(one)}`, one);
    });
    this.nextPreemption = frame.first_preemption + frame.preempted.length;
    const before = this.samples.at(-1)?.programs;
    const late = frame.programs.late_compiles - (before?.late_compiles ?? frame.programs.late_compiles);
    const missed = frame.programs.bucket_misses - (before?.bucket_misses ?? frame.programs.bucket_misses);
    if (late > 0) this.mark(frame.clock, "compiled", `${plural(late, "program")} compiled late: a step waited for it`);
    if (missed > 0) this.mark(frame.clock, "missed", `${plural(missed, "step")} padded to a larger bucket: theirs was not compiled yet`);
  }

  mark(clock, kind, text, of = null) {
    this.marks.push({ clock, kind, text, of });
  }

  trim(clock) {
    const oldest = clock - SECONDS;
    // In pieces: to take one off the front of a long array costs as much as to take many.
    if (this.turns.length > MAX_TURNS + 1000 || (this.turns.length && this.turns[0].ended < oldest - 10)) {
      const first = Math.max(this.turns.length - MAX_TURNS, this.turns.findIndex((turn) => turn.ended >= oldest));
      this.turns.splice(0, first < 0 ? this.turns.length : first);
    }
    if (this.samples[0].clock < oldest - 10) this.samples = this.samples.filter((one) => one.clock >= oldest);
    if (this.marks.length > MAX_MARKS) this.marks.splice(0, this.marks.length - MAX_MARKS);
    for (const [id, span] of this.spans) {
      if (this.spans.size <= MAX_SPANS && !(span.ended !== null && span.ended < oldest)) break;
      if (span.ended === null && this.spans.size <= 2 * MAX_SPANS) continue;
      this.spans.delete(id);
    }
  }

  /** How things stood at a time of the engine's clock, as the frame says that brought it; null before anything was seen. */
  sampleAt(clock) {
    let place = this.samples.length - 1;
    while (place > 0 && this.samples[place - 1].clock >= clock) place -= 1;
    return this.samples[place] ?? null;
  }
}

const REASONS = {
  pages: "one that goes before it needed its pages",
  own_growth: "it needed more pages, and all others go before it",
  tenant_cap: "its tenant has as many pages as it may",
  admission: "an interactive request that waited needed its place",
};

/** Why, in words. */
export function reasonOf(event) {
  const who = event.needed_by && event.needed_by !== event.id ? ` (for ${shortened(event.needed_by)})` : "";
  return `${REASONS[event.reason] ?? words(event.reason)}${who}; ${event.swapped ? "swapped out" : `${plural(event.tokens_lost, "token")} to compute again`}`;
}
