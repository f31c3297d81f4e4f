// What is set for answers to come, as it is sent: what is unset is left to the server, and not sent at all.
import { setting, setSetting } from "../shared/settings.js";

/** The numbers of a request that have a field each: name, label, whether it is a whole one, and what it does. */
export const NUMBERS = [
  ["temperature", "Temperature", false, "0 always takes the likeliest token; higher is more varied"],
  ["top_p", "Top p", false, "draws among the likeliest tokens that have this probability together"],
  ["top_k", "Top k", true, "draws among so many of the likeliest tokens"],
  ["min_p", "Min p", false, "leaves out tokens less likely than this share of the likeliest one"],
  ["max_tokens", "Max tokens", true, "the answer ends after so many tokens"],
  ["seed", "Seed", true, "the same seed gives the same answer"],
  ["presence_penalty", "Presence penalty", false, "against tokens that have come at all"],
  ["frequency_penalty", "Frequency penalty", false, "against tokens by how often they have come"],
  ["repetition_penalty", "Repetition penalty", false, "above 1: against tokens of the prompt and the answer"],
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
