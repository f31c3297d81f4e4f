// The feed of /debug/engine: open while the page is looked at, opened again when it breaks.
import { ApiError, events, request } from "../shared/api.js";
import { askKey } from "../shared/key.js";

const RETRY_MS = [500, 1000, 2000, 5000];

export class Feed {
  /** `onframe(frame)` for each frame; `onstate(text)` says what is wrong, "" for nothing. */
  constructor(onframe, onstate) {
    this.onframe = onframe;
    this.onstate = onstate;
    this.engine = ""; // the one that was chosen; "" for the busiest
    this.stopped = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  open() {
    if (this.stopped || document.hidden) return;
    this.stopped = new AbortController();
    this.run(this.stopped.signal);
  }

  close() {
    this.stopped?.abort();
    this.stopped = null;
  }

  choose(engine) {
    this.engine = engine;
    this.close();
    this.open();
  }

  async run(signal) {
    let failures = 0;
    while (!signal.aborted) {
      try {
        const query = this.engine ? `?engine=${encodeURIComponent(this.engine)}` : "";
        const response = await request(`debug/engine${query}`, { signal });
        for await (const event of events(response)) {
          const frame = JSON.parse(event.data);
          if (frame.error) throw new ApiError(frame.error.message, 0, frame.error.code);
          failures = 0;
          this.onstate("");
          this.onframe(frame);
        }
        throw new ApiError("The stream ended.", 0, "ended");
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        if (!(await this.mend(error, signal))) return;
        await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
        failures += 1;
      }
    }
  }

  /** What can be done about a failure; false if nothing but what the user does next. */
  async mend(error, signal) {
    if (error.status === 401 || error.status === 403) {
      this.onstate(error.message);
      const reason = `${error.message} Watching the engine takes an admin key.`;
      if (await askKey(reason)) return true;
      if (!signal.aborted) this.close();
      this.onstate(`${error.message} Choose “Key” to give one.`);
      return false;
    }
    if (error.status === 404 || error.code === "not_found") this.engine = "";
    this.onstate(`${error.message} Trying again…`);
    return true;
  }
}
