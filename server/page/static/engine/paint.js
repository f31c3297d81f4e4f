// Canvases as sharp as the screen, in the colours of the page's style.

const NAMES = ["text", "quiet", "line", "page", "panel", "accent", "warn", "bad", "soft",
  "phase-plan", "phase-launch", "phase-wait", "phase-apply", "phase-emit", "prefill", "decode", "cached", "swapped"];
let known = null;

/** The style's colours by name; read again after `forgetColours`. */
export function colours() {
  if (known === null) {
    const style = getComputedStyle(document.documentElement);
    known = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return known;
}

export function forgetColours() {
  known = null;
}

/** The canvas's context, cleared, in CSS pixels; null where it has no room. */
export function begin(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width, height };
}

const mixed = new Map();

/** A colour between two, as CSS; the same few again and again. */
export function between(one, other, share) {
  const part = Math.round(10 * share) * 10;
  const key = `${one}${other}${part}`;
  if (!mixed.has(key)) mixed.set(key, mix(one, other, part / 100));
  return mixed.get(key);
}

function mix(one, other, share) {
  const [from, to] = [one, other].map((colour) => [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16)));
  return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * share)).join(" ")})`;
}
