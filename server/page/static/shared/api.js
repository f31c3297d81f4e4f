// The server: requests with the user's key, errors in its own words, and event streams.
import { setting } from "./settings.js";

/** What went wrong, as the server says it; `status` is 0 where there was no answer. */
export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** A request to the server that this page came from. Raises ApiError for every answer that is none. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = setting("key", "");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  if (options.json !== undefined) headers.set("Content-Type", "application/json");
  const body = options.json === undefined ? options.body : JSON.stringify(options.json);
  let response;
  try {
    response = await fetch(path, { method: options.method ?? (body ? "POST" : "GET"), headers, body, signal: options.signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0, "unreachable");
  }
  if (response.ok) return response;
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch { /* the status has to do */ }
  throw new ApiError(told.message ?? `The server answered ${response.status}.`, response.status, told.code ?? "");
}

/**
 * The events of a response: {id, data} with data as text. `id` is "" where the server gives none.
 * Raises ApiError if the connection breaks before the stream is over.
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The connection broke.", 0, "unreachable");
      }
      if (piece.done) return;
      rest += piece.value;
      for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
        const event = parse(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (event !== null) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(text) {
  let id = "";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  return data.length ? { id, data: data.join("\n") } : null;
}
