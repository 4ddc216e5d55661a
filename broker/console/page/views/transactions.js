// Open transactions by age, with their participants, and the last ones that were decided.
import { actions, useActions } from "../actions.js";
import { html } from "../html.js";
import { At, Badge, Page, Panel, Table } from "../parts.js";
import { address } from "../router.js";
import { duration, number, plural } from "../format.js";
import { useStream, useTicks } from "../stream.js";

export function Transactions() {
  const stream = useStream("transactions");
  const { parts } = stream;
  const [dialog, ask] = useActions();
  useTicks(Boolean(parts?.open.length), 1000);
  const now = Date.now();
  return html`<${Page} title="Transactions" stream=${stream} lead=${parts && (parts.total ? `${plural(parts.total, "transaction")} open, the oldest first. Readers wait at the first message of an open one.` : "No transaction is open.")}>
    ${dialog}
    ${parts && html`
    <${Panel} title="Open" flush><${Table} caption="Open transactions" rows=${parts.open} rowKey=${(one) => `${one.protocol} ${one.id}`} empty="No transaction is open, so nothing is held back."
      columns=${[
        { label: "Transaction", wide: true, value: (one) => html`<code>${one.id}</code>${one.group && html`<br /><small class="muted">${one.group}</small>`}${one.producer && html`<br /><small class="muted">producer ${one.producer}</small>`}` },
        { label: "Protocol", value: (one) => html`<${Badge}>${one.protocol}<//>` },
        { label: "Open for", numeric: true, value: (one) => duration(now - one.created_ms) },
        { label: "Aborted in", numeric: true, value: (one) => html`<span class=${one.deadline_ms - now < 10000 ? "lag" : ""}>${duration(one.deadline_ms - now)}</span>` },
        { label: "Takes part", wide: true, value: (one) => html`<${Participants} one=${one} />` },
        { label: "Action", value: (one) => html`<${Abort} one=${one} ask=${ask} />` },
      ]} /><//>
      ${parts.total > parts.open.length && html`<p class="muted">${number(parts.total - parts.open.length)} younger ones are not shown.</p>`}
    <${Panel} title="Decided lately" flush><${Table} caption="Decided transactions" rows=${parts.decided} rowKey=${(one) => one.id} empty="None is remembered."
      columns=${[
        { label: "Transaction", wide: true, value: (one) => html`<code>${one.id}</code>` },
        { label: "Decision", value: (one) => html`<${Badge} tone=${one.state === "COMMITTED" ? "good" : "bad"}>${one.state.toLowerCase()}<//>` },
        { label: "When", value: (one) => html`<${At} ms=${one.finalized_ms} />` },
        { label: "Was open", numeric: true, value: (one) => duration(one.finalized_ms - one.created_ms) },
      ]} /><//>`}
  <//>`;
}

// A Kafka transaction is its producer's, which ends it, or its next instance does.
function Abort({ one, ask }) {
  if (one.protocol === "Kafka") return html`<span class="muted">its producer ends it</span>`;
  return html`<button class="danger-quiet" onClick=${() => ask(actions.abort(one.id))} aria-label=${`Abort ${one.id}`}>Abort</button>`;
}

function Participants({ one }) {
  if (one.participants_total === null) return html`<span class="muted">see its producer</span>`;
  if (!one.participants_total) return html`<span class="muted">nothing yet</span>`;
  return html`<ul class="participants">
    ${one.participants.slice(0, 6).map((each) => html`<li><${Badge}>${each.kind === "ack" ? `acknowledges ${each.subscription}` : "writes"}<//> <a href=${address("topics", topicOf(each.segment))}><code>${each.segment.split("/").slice(-2).join("/")}</code></a>${each.from && html` <a href=${address("messages", topicOf(each.segment), { log: each.segment, from: each.from })}>messages</a>`}</li>`)}
    ${one.participants_total > 6 && html`<li class="muted">and ${number(one.participants_total - 6)} more</li>`}
  </ul>`;
}

function topicOf(segment) {
  return segment.startsWith("segment://") ? segment.replace("segment://", "topic://").split("/").slice(0, -1).join("/") : segment;
}
