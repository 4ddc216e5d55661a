// The doctor's findings: what `tidewire cluster doctor` prints. The broker looks when the view opens, and when it is asked
// to look again. It never looks by itself, because a look reads all records and asks all brokers.
import { ask } from "./asking.js";
import { html, useEffect, useState } from "./html.js";
import { Panel, Prose } from "./parts.js";
import { clock, number, plural } from "./format.js";

const PATH = "/admin/v2/cluster/doctor";
const SHOWN_MAX = 20;

async function look(signal) {
  const answer = await ask(PATH, { signal, cache: "no-store" });
  return answer.json();
}

// A hook: what the doctor found, when it looked, whether it looks now, and a function that lets it look again.
export function useDoctor() {
  const [looks, setLooks] = useState(0);
  const [state, setState] = useState({ isLooking: true, report: null, at: null, reason: null });
  useEffect(() => {
    const abort = new AbortController();
    setState((before) => ({ ...before, isLooking: true }));
    look(abort.signal).then(
      (report) => setState({ isLooking: false, report, at: Date.now(), reason: null }),
      (failure) => {
        if (failure.name === "AbortError") return;
        const reason = failure instanceof TypeError ? "The broker did not answer." : failure.message;
        setState({ isLooking: false, report: null, at: Date.now(), reason });
      },
    );
    return () => abort.abort();
  }, [looks]);
  return { ...state, again: () => setLooks(looks + 1) };
}

export function Doctor({ doctor }) {
  const { isLooking, report, at, reason } = doctor;
  const findings = report?.findings ?? [];
  const more = findings.length - SHOWN_MAX + (report?.more ?? 0);
  return html`<${Panel} title="Doctor" note=${at && `looked at ${clock(at)}`} flush
    actions=${html`<button disabled=${isLooking} onClick=${doctor.again}>${isLooking ? "Looking…" : "Look again"}</button>`}>
    <div class="findings" aria-live="polite">
      ${reason && html`<p class="empty">${reason}</p>`}
      ${!report && !reason && html`<p class="empty">It reads the cluster's records and asks its brokers.</p>`}
      ${report && !findings.length && html`<p class="empty">It found nothing wrong.</p>`}
      ${report?.notLooked.map((what) => html`<p class="pad"><b>Not looked at:</b> ${what}.</p>`)}
      ${findings.slice(0, SHOWN_MAX).map((one) => html`<article class="finding">
        <h3>${one.kind} <code>${one.about}</code></h3>
        <p><${Prose} text=${one.what} /></p>
        <p class="advice"><${Prose} text=${one.advice} /></p>
      </article>`)}
      ${more > 0 && html`<p class="pad muted">${number(more)} more. <code>tidewire cluster doctor</code> prints all of them.</p>`}
    </div>
  <//>`;
}

// What a heading says of it.
export function verdict({ report, isLooking }) {
  if (!report) return isLooking ? "The doctor looks." : "The doctor could not look.";
  return report.findings.length ? `The doctor found ${plural(report.findings.length + report.more, "problem")}.` : "";
}
