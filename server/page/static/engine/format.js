// Numbers as people read them. What is no number is a dash: clocks and counters may say anything.

const DASH = "–";
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? WHOLE.format(value) : DASH;
}

export function percent(share) {
  return known(share) ? `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %` : DASH;
}

/** Seconds in the unit that suits them. */
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  const size = Math.abs(seconds);
  if (size >= 100) return `${WHOLE.format(seconds)} s`;
  if (size >= 1) return `${seconds.toFixed(size >= 10 ? 1 : 2)} s`;
  if (size >= 0.001 || size === 0) return `${(1e3 * seconds).toFixed(size >= 0.1 ? 0 : size >= 0.01 ? 1 : 2)} ms`;
  return `${(1e6 * seconds).toFixed(0)} µs`;
}

export function rate(value) {
  return known(value) ? `${value >= 100 ? WHOLE.format(value) : value.toFixed(1)}/s` : DASH;
}

/** Words of the wire for people: "interactive_paid" is "interactive paid". */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** A sequence's id as far as people tell them apart: the request's name, cut, and its number if the request has several. */
export function shortened(id) {
  const parts = String(id).split("/");
  const name = parts[0].length > 16 ? `${parts[0].slice(0, 14)}…` : parts[0];
  const index = parts.length > 1 ? parts.at(-1) : "0";
  return index === "0" ? name : `${name} #${index}`;
}

/** "1 row", "2 rows". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
