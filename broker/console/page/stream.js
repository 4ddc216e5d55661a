// The stream of events behind a view.
//
// A page has one stream, for the view that it shows, because browsers open few connections to one host. A page that is
// hidden has none. A lost stream is asked for again, after a pause that grows. `fetch` reads it, and not `EventSource`,
// because that hides why a broker refuses.
import { ask } from "./asking.js";
import { useEffect, useReducer, useRef } from "./html.js";

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 8000;

export const VERSION = document.querySelector("meta[name=console-version]").content;

// Read server-sent events and call `onFrame` with each. Returns at the stream's end.
async function read(url, signal, onFrame) {
  const answer = await ask(url, { signal, headers: { accept: "text/event-stream" }, cache: "no-store" });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const frames = text.split("\n\n");
    text = frames.pop();
    for (const frame of frames) if (frame.startsWith("data: ")) onFrame(JSON.parse(frame.slice(6)));
  }
}

class Stream {
  constructor(url, onChange) {
    this.url = url;
    this.onChange = onChange;
    this.state = { parts: null, status: "connecting", reason: null, offset: 0, isOld: false };
    this.retryMs = RETRY_MS_MIN;
    this.isClosed = false;
    this.onVisible = () => (document.hidden ? this.pause() : this.open());
    document.addEventListener("visibilitychange", this.onVisible);
    window.addEventListener("online", this.onVisible);
    this.open();
  }

  close() {
    this.isClosed = true;
    this.pause();
    document.removeEventListener("visibilitychange", this.onVisible);
    window.removeEventListener("online", this.onVisible);
  }

  pause() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  async open() {
    if (this.isClosed || document.hidden) return;
    this.pause();
    const abort = (this.abort = new AbortController());
    let reason = "The broker has ended the connection.";
    try {
      let isFirst = true;
      await read(this.url, abort.signal, (frame) => {
        if (frame.failed) {
          reason = frame.failed;
          return;
        }
        const { at, ...parts } = frame;
        this.retryMs = RETRY_MS_MIN;
        this.update({
          parts: isFirst ? parts : { ...this.state.parts, ...parts },
          status: "live",
          reason: null,
          // The broker's clock at the moment t of this page is t + offset.
          offset: at - performance.now(),
          at,
          isOld: (parts.version ?? VERSION) !== VERSION,
        });
        isFirst = false;
      });
    } catch (failure) {
      if (failure.name === "AbortError") return;
      reason = failure instanceof TypeError ? "The broker does not answer." : failure.message;
    }
    if (this.isClosed || this.abort !== abort) return;
    this.update({ status: "lost", reason });
    this.timer = setTimeout(() => this.open(), this.retryMs * (0.75 + Math.random() / 2));
    this.retryMs = Math.min(RETRY_MS_MAX, this.retryMs * 2);
  }

  update(change) {
    this.state = { ...this.state, ...change };
    if (!this.isClosed) this.onChange();
  }
}

// The state of a view's stream: its parts, whether they are live, and why not. `onFrame` sees each frame once.
export function useStream(view, parameters = {}, onFrame = null) {
  const [, changed] = useReducer((count) => count + 1, 0);
  const stream = useRef(null);
  const last = useRef(null);
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const url = `/console/events?${new URLSearchParams([["view", view], ...given])}`;
  useEffect(() => {
    stream.current = new Stream(url, () => changed());
    changed();
    return () => stream.current.close();
  }, [url]);
  const state = stream.current?.url === url ? stream.current.state : { parts: null, status: "connecting", reason: null };
  // While another page of the same view is loaded, the last one stays.
  if (state.parts) last.current = { view, parts: state.parts };
  const parts = state.parts ?? (last.current?.view === view ? last.current.parts : null);
  if (onFrame && state.parts && state.at !== stream.current.seen) {
    stream.current.seen = state.at;
    onFrame(state.parts, state.at);
  }
  return { ...state, parts, now: () => performance.now() + (state.offset ?? 0) };
}

// Draw again every `ms`, while `isOn`: ages and rates change with time alone, so no event could tell. It asks nobody.
export function useTicks(isOn, ms = 1000) {
  const [, tick] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = setInterval(tick, ms);
    return () => clearInterval(timer);
  }, [isOn, ms]);
}
