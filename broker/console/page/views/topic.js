// One topic as its picture, with the rate and backlog of each segment, and its subscriptions.
import { html, useRef, useState } from "../html.js";
import { Badge, Bar, Page, Panel, Silent, Table, Tile } from "../parts.js";
import { Meters } from "../rates.js";
import { Picture } from "../picture.js";
import { address } from "../router.js";
import { bytes, clock, hash, moment, number, parts as nameParts, plural, short } from "../format.js";
import { useStream, useTicks } from "../stream.js";
import { actions, useActions } from "../actions.js";

const COUNTERS = ["messages_in", "messages_out", "bytes_in", "bytes_out"];

export function Topic({ name, query }) {
  const meters = useRef(new Meters());
  const stream = useStream("topic", { name }, (parts, at) => {
    for (const [log, counted] of Object.entries(parts.logs)) {
      for (const counter of COUNTERS) meters.current.push(at, `${log} ${counter}`, counted[counter]);
    }
    meters.current.keep(Object.keys(parts.logs).map((log) => `${log} `));
  });
  const [dialog, ask] = useActions();
  const { parts } = stream;
  const now = stream.now();
  // The picture moves with time, so it is drawn again each second. That costs the broker nothing.
  useTicks(stream.status === "live", 1000);
  const { local, domain, namespace } = nameParts(name);
  const rates = (log) => Object.fromEntries(COUNTERS.map((counter) => [counter, meters.current.rate(now, `${log} ${counter}`)]));
  return html`<${Page} title=${local} stream=${stream}
    crumb=${html`<a href=${address("topics")}>Topics</a> <span>${domain}://${namespace}</span>`}
    actions=${parts && html`<a class="button" href=${address("messages", name)}>Messages</a>
      ${parts.layout && html`<button onClick=${() => ask(actions.unload(name))}>Unload</button>
      <button class="danger-quiet" onClick=${() => ask({ ...actions.removeTopic(name), onDone: () => (location.hash = address("topics")) })}>Delete</button>`}`}>
    ${parts && html`<${Silent} silent=${parts.silent} />`}
    ${parts && (parts.layout ? html`<${Scalable} parts=${parts} rates=${rates} ask=${ask} chosen=${query.get("subscription")} />` : html`<${Regular} name=${name} parts=${parts} rates=${rates} ask=${ask} chosen=${query.get("subscription")} />`)}
    ${dialog}
  <//>`;
}

// What is known of each log, by the segment's number.
function livesOf(parts, rates) {
  const lives = {};
  for (const segment of Object.values(parts.layout.segments)) {
    const log = segment.legacyTopicName ?? logName(parts.topic, segment);
    const counted = parts.logs[log];
    const rate = rates(log);
    lives[segment.segmentId] = {
      log,
      isKnown: Boolean(counted),
      owner: parts.owners[log],
      rateIn: rate.messages_in,
      rateOut: rate.messages_out,
      bytesIn: rate.bytes_in,
      backlog: counted ? Object.values(counted.subscriptions).reduce((sum, one) => sum + one.backlog, 0) : 0,
      subscriptions: counted ? Object.keys(counted.subscriptions).length : 0,
      writers: parts.writers[log] ?? 0,
      messages: counted ? counted.end - counted.first : null,
      held: counted ? counted.end - counted.readable : 0,
      producers: counted?.producers ?? null,
    };
  }
  return lives;
}

export function logName(topic, segment) {
  return `${topic.replace("topic://", "segment://")}/${hash(segment.hashRange.start)}-${hash(segment.hashRange.end)}-${segment.segmentId}`;
}

function Scalable({ parts, rates, ask, chosen: opened }) {
  const [selected, setSelected] = useState(null);
  const { layout } = parts;
  const lives = livesOf(parts, rates);
  const segments = Object.values(layout.segments);
  const active = segments.filter((segment) => segment.active).sort((one, other) => one.hashRange.start - other.hashRange.start);
  const every = Object.values(lives);
  const sum = (key) => every.reduce((total, live) => total + (live[key] ?? 0), 0);
  const chosen = layout.segments[selected] ?? null;
  const most = Math.max(1, ...active.map((segment) => lives[segment.segmentId].rateIn));
  return html`
    <div class="tiles">
      <${Tile} label="In" value=${short(sum("rateIn"))} unit="/s" note=${`${bytes(sum("bytesIn"))}/s`} tone="in" />
      <${Tile} label="Out" value=${short(sum("rateOut"))} unit="/s" note=${plural(Object.keys(layout.subscriptions).length, "subscription")} tone="out" />
      <${Tile} label="Backlog" value=${short(sum("backlog"))} note="of all subscriptions together" />
      <${Tile} label="Active segments" value=${number(active.length)} note=${`${number(segments.length - active.length)} sealed, layout epoch ${layout.epoch}`} />
      <${Tile} label="Open transactions" value=${number(parts.transactions)} note=${parts.transactions && sum("held") ? `hold back ${plural(sum("held"), "message")}` : "hold nothing back"} href=${address("transactions")} />
    </div>
    ${layout.intent && html`<div class="notice live" role="status">${intentText(layout.intent)}</div>`}
    <${Panel} title="Segments" note="hash ranges over time" flush>
      <${Picture} layout=${layout} lives=${lives} selected=${selected} onSelect=${(id) => setSelected(id === selected ? null : id)} now=${Date.now()} />
      ${chosen && html`<${Chosen} topic=${parts.topic} segment=${chosen} live=${lives[chosen.segmentId]} active=${active} isBusy=${Boolean(layout.intent)} ask=${ask} />`}
    <//>
    <${Panel} title="Active segments" flush>
      <${Table} caption="Active segments" rows=${active} rowKey=${(segment) => segment.segmentId} empty="No segment takes messages." onOpen=${(segment) => setSelected(segment.segmentId)}
        columns=${[
          { label: "Segment", value: (segment) => html`<button class="link" onClick=${() => setSelected(segment.segmentId)}>${segment.segmentId}</button>` },
          { label: "Hashes", value: (segment) => html`<code>${hash(segment.hashRange.start)}–${hash(segment.hashRange.end)}</code>` },
          { label: "In", numeric: true, value: (segment) => html`${short(lives[segment.segmentId].rateIn)}/s <${Bar} value=${lives[segment.segmentId].rateIn} most=${most} />` },
          { label: "Out", numeric: true, value: (segment) => `${short(lives[segment.segmentId].rateOut)}/s` },
          { label: "Backlog", numeric: true, value: (segment) => short(lives[segment.segmentId].isKnown ? lives[segment.segmentId].backlog : null) },
          { label: "Open txns", numeric: true, value: (segment) => number(lives[segment.segmentId].writers) },
          { label: "Owner", value: (segment) => owner(lives[segment.segmentId].owner) },
        ]} />
    <//>
    <${Subscriptions} parts=${parts} ask=${ask} opened=${opened} />`;
}

function owner(broker) {
  return broker ? html`<a href=${address("cluster", "", { broker })}>${broker}</a>` : html`<span class="muted" title="Nobody uses it, so no broker has it loaded.">not loaded</span>`;
}

function intentText(intent) {
  const into = intent.children.map((child) => child.id).join(" and ");
  const what = intent.parents.length === 1 ? `Segment ${intent.parents[0]} is being split into ${into}.` : `Segments ${intent.parents.join(" and ")} are being merged into ${into}.`;
  return `${what} ${intent.sealing ? "The children take messages, and the parents are being sealed." : "The children are being made."}`;
}

function Chosen({ topic, segment, live, active, isBusy, ask }) {
  const index = active.findIndex((one) => one.segmentId === segment.segmentId);
  const neighbour = index < 0 ? null : (active[index + 1] ?? active[index - 1]);
  const isSplittable = segment.active && segment.hashRange.end > segment.hashRange.start;
  return html`<div class="chosen">
    <h3>Segment ${segment.segmentId} <code>${live.log.split("/").at(-1)}</code></h3>
    <dl>
      <div><dt>State</dt><dd>${segment.active ? "takes messages" : `sealed ${clock(segment.sealedAtMs)}`}</dd></div>
      <div><dt>Created</dt><dd title=${moment(segment.createdAtMs)}>${clock(segment.createdAtMs)}</dd></div>
      <div><dt>Owner</dt><dd>${owner(live.owner)}</dd></div>
      <div><dt>Messages kept</dt><dd>${number(live.messages)}</dd></div>
      <div><dt>Producers</dt><dd>${number(live.producers)}</dd></div>
      <div><dt>Backlog</dt><dd>${live.isKnown ? number(live.backlog) : "–"}</dd></div>
      <div><dt>Parents</dt><dd>${segment.parentIds.join(", ") || "none"}</dd></div>
      <div><dt>Children</dt><dd>${segment.childIds.join(", ") || "none"}</dd></div>
    </dl>
    <div class="buttons"><a class="button" href=${address("messages", topic, { log: logName(topic, segment) })}>Messages</a>
      ${segment.active && html`<button disabled=${isBusy || !isSplittable} onClick=${() => ask(actions.split(topic, segment.segmentId))}>Split</button>`}
      ${segment.active && neighbour && html`<button disabled=${isBusy} onClick=${() => ask(actions.merge(topic, segment.segmentId, neighbour.segmentId))}>Merge with ${neighbour.segmentId}</button>`}
    </div>
  </div>`;
}

// The subscriptions of all logs together, with who holds which of them.
export function joined(logs, known = {}) {
  const found = {};
  for (const [name, one] of Object.entries(known)) found[name] = { name, type: one.type, backlog: 0, consumers: {}, isKnown: false };
  for (const [log, counted] of Object.entries(logs)) {
    for (const [name, one] of Object.entries(counted.subscriptions)) {
      const sum = (found[name] ??= { name, type: one.type, backlog: 0, consumers: {} });
      sum.isKnown = true;
      sum.backlog += one.backlog;
      for (const consumer of one.consumers) {
        const holder = (sum.consumers[consumer.name] ??= { name: consumer.name, logs: [], unacked: 0, permits: 0, messages_out: 0 });
        holder.logs.push(log.split("/").at(-1));
        for (const key of ["unacked", "permits", "messages_out"]) holder[key] += consumer[key];
      }
    }
  }
  return Object.values(found).sort((one, other) => one.name.localeCompare(other.name));
}

function Subscriptions({ parts, ask, opened }) {
  const subscriptions = joined(parts.logs, parts.layout?.subscriptions);
  const isPartlyLoaded = parts.layout && Object.values(parts.layout.segments).some((segment) => !parts.logs[segment.legacyTopicName ?? logName(parts.topic, segment)]);
  return html`<${Panel} title="Subscriptions" flush actions=${isPartlyLoaded && subscriptions.length > 0 && html`<button onClick=${() => ask(actions.load(parts.topic))}>Load all segments</button>`}>
    ${isPartlyLoaded && subscriptions.length > 0 && html`<p class="pad muted">Some segments are not loaded, because no client uses them. What is left to read there is not counted.</p>`}
    ${subscriptions.length === 0 && html`<p class="empty">Nobody has subscribed.</p>`}
    ${subscriptions.map((one) => html`<details class="subscription" key=${one.name} open=${one.name === opened}>
      <summary><b>${one.name}</b> <${Badge}>${one.type.toLowerCase()}<//> <span class="spacer"></span>
        <span>${plural(Object.keys(one.consumers).length, "consumer")}</span> <span class=${one.backlog ? "lag" : "muted"}>${one.isKnown ? `${number(one.backlog)} behind` : "backlog unknown"}</span></summary>
      <${Table} caption="Consumers" rows=${Object.values(one.consumers)} rowKey=${(consumer) => consumer.name} empty="No consumer is connected."
        columns=${[
          { label: "Consumer", wide: true, value: (consumer) => html`<code>${consumer.name || "(no name)"}</code>` },
          { label: "Holds", value: (consumer) => html`<code class="holds">${consumer.logs.join("  ")}</code>` },
          { label: "Not acknowledged", numeric: true, value: (consumer) => number(consumer.unacked) },
          { label: "Asks for", numeric: true, value: (consumer) => number(consumer.permits) },
          { label: "Got", numeric: true, value: (consumer) => number(consumer.messages_out) },
        ]} />
      <${Steer} topic=${parts.topic} name=${one.name} ask=${ask} />
    </details>`)}
  <//>`;
}

function Steer({ topic, name, ask }) {
  const [time, setTime] = useState("");
  return html`<div class="buttons">
    <label class="inline">Go to <input type="datetime-local" step="1" value=${time} onInput=${(event) => setTime(event.target.value)} /></label>
    <button disabled=${!time} onClick=${() => ask(actions.seek(topic, name, new Date(time).getTime()))}>Seek</button>
    <button onClick=${() => ask(actions.skip(topic, name))}>Skip the backlog</button>
    <button class="danger-quiet" onClick=${() => ask(actions.unsubscribe(topic, name))}>Delete</button>
  </div>`;
}

function Regular({ name, parts, rates, ask, chosen }) {
  const logs = Object.entries(parts.logs).sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
  const isUnknown = parts.partitions === null && logs.length === 0 && !Object.keys(parts.owners).length;
  if (name.startsWith("topic://") || parts.exists === false) return html`<div class="notice error" role="alert">${parts.problem ?? "There is no such topic. It may have been deleted."}</div>`;
  return html`
    ${isUnknown && html`<div class="notice">No broker has this topic loaded, so nothing is known of its messages now. A producer or consumer loads it.</div>`}
    <${Panel} title=${parts.partitions ? plural(parts.partitions, "partition") : "Log"} flush>
      <${Table} caption="Logs" rows=${logs} rowKey=${([log]) => log} empty="None is loaded."
        columns=${[
          { label: "Log", wide: true, value: ([log]) => html`<code>${log.split("/").at(-1)}</code>` },
          { label: "In", numeric: true, value: ([log]) => `${short(rates(log).messages_in)}/s` },
          { label: "Out", numeric: true, value: ([log]) => `${short(rates(log).messages_out)}/s` },
          { label: "First", numeric: true, value: ([, counted]) => number(counted.first) },
          { label: "End", numeric: true, value: ([, counted]) => number(counted.end) },
          { label: "Held back", numeric: true, value: ([, counted]) => number(counted.end - counted.readable) },
          { label: "Owner", value: ([, counted]) => owner(counted.broker) },
        ]} />
    <//>
    <${Subscriptions} parts=${{ ...parts, topic: name }} ask=${ask} opened=${chosen} />`;
}
