// Streams that outlive their connection: the server records them by an id, and goes on behind the last event that was seen.
import { ApiError, events, request } from "../shared/api.js";

const WAITS = [250, 500, 1000, 2000, 4000, 8000, 8000]; // milliseconds between tries
export const UNREACHED = [0, 502, 503, 504]; // statuses of a server, or of a proxy before it, that may answer soon
const PATH = "v1/streams/";

/**
 * The events of a stream: {id, data}, each once, whatever happens to the connection.
 * `body` begins it; without one it is gone on with behind `stream.last`. `waiting(true)` is called while there is no connection.
 * Raises ApiError: with one of UNREACHED as its status where the server was not reached again, with 404 or 409 where it has the rest no more.
 */
export async function* follow(stream, { body = null, signal, waiting }) {
  const headers = { "X-Conversation-Id": stream.id };
  let response = body && (await request("v1/chat/completions", { json: body, headers, signal }));
  let last = Number(stream.last);
  for (let tries = 0; ; response = null) {
    try {
      response ??= await request(`${PATH}${encodeURIComponent(stream.id)}?from=${last}`, { signal });
      waiting(false);
      for await (const event of events(response)) {
        tries = 0;
        if (event.data === "[DONE]") return;
        if (event.id && Number(event.id) <= last) continue;
        if (event.id) last = Number(event.id);
        yield event;
      }
      throw new ApiError("The connection broke.", 0, "unreachable");
    } catch (error) {
      if (!(error instanceof ApiError) || !UNREACHED.includes(error.status) || tries >= WAITS.length) throw error;
    }
    waiting(true);
    await pause(WAITS[tries], signal);
    tries += 1;
  }
}

/** Ends a stream on the server. That it is not there any more is fine. */
export async function endStream(stream) {
  await request(PATH + encodeURIComponent(stream.id), { method: "DELETE" }).catch(() => {});
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
