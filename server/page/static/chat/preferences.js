// What is set for answers to come, as it is sent: what is unset is left to the server, and not sent at all.
import { setting, setSetting } from "../shared/settings.js";

/** The numbers of a request that have a field each: name, label, step, and what it does. */
export const NUMBERS = [
  ["temperature", "Temperature", 0.1, "0 always takes the likeliest token; higher is more varied"],
  ["top_p", "Top p", 0.05, "draws among the likeliest tokens that have this probability together"],
  ["top_k", "Top k", 1, "draws among so many of the likeliest tokens"],
  ["min_p", "Min p", 0.01, "leaves out tokens less likely than this share of the likeliest one"],
  ["max_tokens", "Max tokens", 1, "the answer ends after so many tokens"],
  ["seed", "Seed", 1, "the same seed gives the same answer"],
  ["presence_penalty", "Presence penalty", 0.1, "against tokens that have come at all"],
  ["frequency_penalty", "Frequency penalty", 0.1, "against tokens by how often they have come"],
  ["repetition_penalty", "Repetition penalty", 0.05, "above 1: against tokens of the prompt and the answer"],
];

const DEFAULTS = { numbers: {}, stop: "", system: "", schema: "", tools: "", calculator: false, logprobs: false, model: "" };

/** All of it; never changed in place. */
export function preferences() {
  return { ...DEFAULTS, ...setting("chat", {}) };
}

export function prefer(changes) {
  setSetting("chat", { ...preferences(), ...changes });
}

/** Stop strings: one a line, in which \n and \t are what they are in JSON. */
export function stopStrings(text) {
  return text.split("\n").filter((line) => line !== "").map((line) => line.replace(/\\([nt\\])/g, (_, sign) => ({ n: "\n", t: "\t", "\\": "\\" })[sign]));
}
