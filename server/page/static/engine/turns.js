// A turn of the engine as the server writes it, in the order of jaxserve/metrics/frame.py, and what can be said of many.
import { count, duration, plural } from "./format.js";

export const PHASES = ["plan", "launch", "wait", "apply", "emit"];

/** A turn from its row; times become seconds of the engine's clock. */
export function turnOf(row, number) {
  const [began, planned, launched, waited, applied, ended, step, rows, tokens, prefill, drafts, collected, accepted, stepBegan,
    running, waiting, pagesFree, collectedFirst, generated] = row;
  const at = (microseconds) => began + microseconds / 1e6;
  return {
    number, began, planned: at(planned), launched: at(launched), waited: at(waited), applied: at(applied), ended: at(ended),
    step, rows, tokens, prefill, drafts, collected, accepted, stepBegan: at(stepBegan), running, waiting, pagesFree,
    collectedFirst, generated, launchedBy: null,
  };
}

/** [name, from, to] of each phase, in the order in which they were. */
export function phasesOf(turn) {
  const giving = [["plan", turn.planned], ["launch", turn.launched]];
  const taking = [["wait", turn.waited], ["apply", turn.applied]];
  const ends = [...(turn.collectedFirst ? [...taking, ...giving] : [...giving, ...taking]), ["emit", turn.ended]];
  let from = turn.began;
  return ends.map(([name, to]) => {
    const phase = [name, from, Math.max(from, to)];
    from = phase[2];
    return phase;
  });
}

/** Of the step whose result a turn took: the share of its tokens that are prompts'; null where its launch is not known. */
export function prefillShare(turn) {
  const step = turn.launchedBy;
  return step && step.tokens ? step.prefill / step.tokens : null;
}

/** Everything about a turn in one line. */
export function describe(turn) {
  const parts = [];
  if (turn.step >= 0) {
    const kinds = [];
    if (turn.prefill) kinds.push(`${count(turn.prefill)} of prompts`);
    if (turn.drafts) kinds.push(plural(turn.drafts, "draft"));
    parts.push(`launched step ${turn.step}: ${plural(turn.rows, "row")}, ${plural(turn.tokens, "token")}${kinds.length ? ` (${kinds.join(", ")})` : ""}`);
  }
  if (turn.collected >= 0) {
    const right = turn.launchedBy?.drafts ? `, ${turn.accepted} of ${plural(turn.launchedBy.drafts, "draft")} right` : "";
    parts.push(`took step ${turn.collected}: ${duration(turn.waited - turn.stepBegan)} on the device${right}`);
  }
  parts.push(phasesOf(turn).map(([name, from, to]) => `${name} ${duration(to - from)}`).join(", "));
  parts.push(`then ${turn.running} running, ${turn.waiting} waiting, ${plural(turn.pagesFree, "page")} free`);
  return `Turn ${turn.number}: ${parts.join("; ")}.`;
}

/** The place of the first turn that ended at `time` or later. */
export function firstAt(turns, time) {
  let low = 0, high = turns.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (turns[middle].ended < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Times between results of steps that followed one another, sorted: what a sequence that decodes waits for its next token. */
export function gaps(turns) {
  const found = [];
  for (let place = 1; place < turns.length; place += 1) {
    const turn = turns[place], before = turns[place - 1];
    if (turn.collected >= 0 && turn.collected === before.collected + 1) found.push(turn.waited - before.waited);
  }
  return found.filter((gap) => gap >= 0).sort((one, other) => one - other);
}

/** A quantile of sorted numbers; null of none. */
export function quantile(sorted, share) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : null;
}
