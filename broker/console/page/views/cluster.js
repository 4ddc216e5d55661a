// The cluster: its brokers, what each owns, and what moves between them.
import { html } from "../html.js";
import { At, Page, Panel, Search, Silent, Table } from "../parts.js";
import { State } from "./overview.js";
import { address, replaceQuery } from "../router.js";
import { number, plural } from "../format.js";
import { useStream } from "../stream.js";
import { actions, useActions } from "../actions.js";

export function Cluster({ query }) {
  const search = query.get("search") ?? "";
  const asked = query.get("broker");
  const stream = useStream("cluster", { broker: asked, search });
  const [dialog, ask] = useActions();
  const { parts } = stream;
  return html`<${Page} title="Cluster" stream=${stream} lead=${parts && lead(parts)}>
    ${parts && html`<${Silent} silent=${parts.silent} />
    <${Panel} title="Brokers" flush><${Table} caption="Brokers" rows=${parts.brokers} rowKey=${(one) => one.broker} empty="No broker is registered."
      columns=${[
        { label: "Broker", wide: true, value: (one) => html`<button class="link" aria-pressed=${one.broker === asked ? "true" : "false"} onClick=${() => replaceQuery({ broker: one.broker === asked ? "" : one.broker })}><b>${one.broker}</b></button>` },
        { label: "State", value: (one) => html`<${State} state=${one.state} />` },
        { label: "Segments", numeric: true, value: (one) => number(one.claims.segments) },
        { label: "Topics", numeric: true, value: (one) => number(one.claims.topics) },
        { label: "Controls", numeric: true, value: (one) => number(one.claims.controllers) },
        { label: "Coordinates", numeric: true, value: (one) => number((one.claims.coordinators ?? 0) + (one.claims.groups ?? 0)) },
        { label: "Addresses", value: (one) => html`<small class="addresses">${[one.service_url, one.http_url, one.kafka && `kafka ${one.kafka}`].filter(Boolean).map((each) => html`<span>${each}</span>`)}</small>` },
        { label: "", value: (one) => one.state === "running"
            ? html`<button disabled=${parts.brokers.length < 2} title=${parts.brokers.length < 2 ? "There is no other broker to take over." : ""} onClick=${() => ask(actions.drain(one.broker))}>Drain</button>`
            : one.state === "draining" ? html`<button onClick=${() => ask(actions.undrain(one.broker))}>End the drain</button>` : "" },
      ]} /><//>
    ${parts.owned.broker && html`<${Panel} title=${`What ${parts.owned.broker} owns`} note=${number(parts.owned.total)} flush actions=${html`<${Search} value=${search} label="Search names" />`}>
      <${Table} caption="Names" rows=${parts.owned.names} rowKey=${(name) => name} empty="Nothing." columns=${[{ label: "Name", wide: true, value: (name) => html`<code>${name}</code>` }]} />
      ${parts.owned.total > parts.owned.names.length && html`<p class="muted pad">${number(parts.owned.total - parts.owned.names.length)} more. Search to find them.</p>`}
    <//>`}
    <${Panel} title="Moves" note="since this page was opened" flush><${Table} caption="Moves" rows=${parts.moves} rowKey=${(one) => `${one.at_ms} ${one.name} ${one.to}`} empty="Nothing has moved."
      columns=${[
        { label: "When", value: (one) => html`<${At} ms=${one.at_ms} />` },
        { label: "What", wide: true, value: (one) => html`<code>${one.name}</code>` },
        { label: "From", value: (one) => one.from ?? html`<span class="muted">nobody</span>` },
        { label: "To", value: (one) => one.to ?? html`<span class="muted">nobody</span>` },
      ]} /><//>`}
    ${dialog}
  <//>`;
}

function lead(parts) {
  const controller = parts.controller === null ? "Metadata is in etcd." : parts.controller ? `Broker ${parts.controller} decides for the metadata.` : "No broker decides for the metadata at this moment.";
  return `${plural(parts.brokers.length, "broker")}. ${controller}`;
}
