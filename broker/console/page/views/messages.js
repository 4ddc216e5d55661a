// Messages of one log: a page by position or time, each with its state. Looking moves nothing.
import { ask } from "../asking.js";
import { html, useEffect, useState } from "../html.js";
import { Badge, Copy, Page, Panel, Silent, Table } from "../parts.js";
import { address, replaceQuery } from "../router.js";
import { bytes, clock, hash, moment, number, parts as nameParts, path, plural } from "../format.js";
import { useStream } from "../stream.js";
import { logName } from "./topic.js";

const COUNTS = [20, 100, 500];
const WHOLE_BYTES = 65536;
const EXCERPT = 160;
// A sign and a word, so that nobody needs the colour.
const STATES = {
  committed: { tone: "good", sign: "✓", text: "Consumers get it." },
  open: { tone: "warn", sign: "…", text: "Its transaction is open. No consumer gets it yet." },
  aborted: { tone: "bad", sign: "✕", text: "Its transaction was aborted. No consumer gets it." },
  deleted: { tone: "", sign: "−", text: "It was deleted by request, so it is not shown." },
  marker: { tone: "", sign: "¶", text: "It is no message: a broker wrote it for brokers." },
  damaged: { tone: "bad", sign: "!", text: "It cannot be read." },
};

export function AnyMessages() {
  const [name, setName] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const full = name.includes("://") ? name : `topic://${name.includes("/") ? name : `public/default/${name}`}`;
    location.hash = address("messages", full);
  };
  return html`<${Page} title="Messages" lead="Look at the messages of a topic by position or time. Nothing moves.">
    <form class="panel inline-form" onSubmit=${submit}>
      <label class="field">Topic<input value=${name} required placeholder="topic://public/default/orders" onInput=${(event) => setName(event.target.value)} data-search autocomplete="off" spellcheck=${false} /></label>
      <button class="primary">Show its messages</button>
    </form>
    <p class="muted">Or choose one of the <a href=${address("topics")}>topics</a>.</p>
  <//>`;
}

export function Messages({ name, query }) {
  const stream = useStream("topic", { name });
  const { parts } = stream;
  const logs = parts ? logsOf(name, parts) : [];
  const log = logs.some((one) => one.name === query.get("log")) ? query.get("log") : (logs[0]?.name ?? null);
  const { local, domain, namespace } = nameParts(name);
  return html`<${Page} title=${`Messages of ${local}`} stream=${stream} lead="Looking moves nothing, and makes no subscription."
    crumb=${html`<a href=${address("topics")}>Topics</a> <a href=${address("topics", name)}>${domain}://${namespace}/${local}</a>`}>
    ${parts && html`<${Silent} silent=${parts.silent} />`}
    ${parts && (log ? html`<${Log} key=${log} topic=${name} log=${log} logs=${logs} query=${query} live=${parts.logs[logs.find((one) => one.name === log).loaded]} writers=${parts.writers} />`
      : html`<div class="notice error" role="alert">${parts.problem ?? "There is no such topic. It may have been deleted."}</div>`)}
  <//>`;
}

// The logs of a topic: {name, label, loaded}. A migrated topic's first segment is loaded under its regular name.
function logsOf(topic, parts) {
  if (parts.layout) {
    const segments = Object.values(parts.layout.segments).sort((one, other) => Number(other.active) - Number(one.active) || one.hashRange.start - other.hashRange.start);
    return segments.map((segment) => {
      const name = logName(parts.topic, segment);
      const range = `${hash(segment.hashRange.start)}–${hash(segment.hashRange.end)}`;
      return { name, loaded: segment.legacyTopicName ?? name, label: `Segment ${segment.segmentId}, ${range}${segment.active ? "" : ", sealed"}` };
    });
  }
  if (topic.startsWith("topic://")) return [];
  if (!parts.partitions) return [{ name: topic, loaded: topic, label: "The whole topic" }];
  return Array.from({ length: parts.partitions }, (_, index) => ({ name: `${topic}-partition-${index}`, loaded: `${topic}-partition-${index}`, label: `Partition ${index}` }));
}

function urlOf(log, query) {
  const kind = log.startsWith("segment://") ? "segments" : "persistent";
  const asked = new URLSearchParams();
  for (const key of ["from", "before", "count", "bytes"]) if (query.get(key)) asked.set(key, query.get(key));
  return `/admin/v2/${kind}/${path(log)}/messages?${asked}`;
}

// The page at an address: {page, reason, isBusy}. It is asked for again when `again` changes. A page with messages of
// open transactions is asked for once more, and then whenever `decided` changes: what was decided while the page was on
// its way is in no later frame.
function usePage(url, again, decided) {
  const [state, setState] = useState({ url: null, page: null, reason: null, isBusy: true });
  const hasOpen = Boolean(state.page?.messages.some((one) => one.state === "open"));
  useEffect(() => {
    const abort = new AbortController();
    setState((known) => ({ ...known, isBusy: true }));
    read(url, abort.signal).then(
      (page) => setState({ url, page, reason: null, isBusy: false }),
      (failure) => failure.name !== "AbortError" && setState({ url, page: null, reason: failure instanceof TypeError ? "The broker does not answer." : failure.message, isBusy: false }),
    );
    return () => abort.abort();
  }, [url, again, hasOpen ? decided : null]);
  return state;
}

async function read(url, signal) {
  const answer = await ask(url, { signal });
  return answer.json();
}

function Log({ topic, log, logs, query, live, writers }) {
  const [again, setAgain] = useState(0);
  const url = urlOf(log, query);
  // What is decided raises the readable end, or removes what a transaction wrote down here.
  const { page, reason, isBusy } = usePage(url, again, `${live?.readable} ${writers[log] ?? 0}`);
  const rows = page?.messages ?? [];
  const keyOf = (row) => row.position;
  const selected = rows.find((row) => keyOf(row) === query.get("message"));
  const select = (row) => replaceQuery({ message: row === selected ? "" : keyOf(row) });
  const go = (change) => replaceQuery({ from: "", before: "", message: "", ...change });
  return html`
    <${Ask} key=${`${query.get("from")} ${query.get("before")}`} query=${query} go=${go} log=${log} logs=${logs} />
    ${reason && html`<div class="notice error" role="alert">${reason}</div>`}
    ${page && html`<div class=${isBusy ? "stale" : ""}>
      <${Panel} title=${plural(rows.reduce((sum, row) => sum + row.messages, 0), "message")} note=${noteOf(page)} flush
        actions=${html`<button class="quiet" onClick=${() => setAgain(again + 1)}>Look again</button>`}>
        <${Table} caption="Messages" rows=${rows} rowKey=${keyOf} empty=${emptyText(page, query)} onOpen=${select}
          columns=${[
            { label: "Position", value: (row) => html`<button class="link" aria-pressed=${row === selected ? "true" : "false"} onClick=${() => select(row)}><code class="position">${row.position}</code></button>` },
            { label: "State", value: (row) => html`<${State} row=${row} />` },
            { label: "Stored", value: (row) => (row.storedTime === undefined ? "" : html`<time title=${moment(row.storedTime)}>${clock(row.storedTime)}</time>`) },
            { label: "Key", value: (row) => html`<code>${row.key ?? row.keyBase64 ?? ""}</code>` },
            { label: "Value", wide: true, value: (row) => html`<code class=${row.state === "aborted" ? "struck" : ""}>${excerpt(row)}</code>` },
            { label: "Size", numeric: true, value: (row) => (row.size === undefined ? "" : bytes(row.size)) },
          ]} />
        <nav class="pager" aria-label="Pages">
          <button onClick=${() => go({ from: "earliest" })} disabled=${page.older === null}>Oldest</button>
          <button onClick=${() => go({ before: page.older })} disabled=${page.older === null}>Older</button>
          <button onClick=${() => go({ from: page.newer })} disabled=${!page.hasNewer}>Newer</button>
          <button onClick=${() => go({})} disabled=${!page.hasNewer}>Newest</button>
        </nav>
      <//>
      ${selected && html`<${Message} row=${selected} topic=${topic} readable=${page.readable} />`}
    </div>`}`;
}

function noteOf(page) {
  const range = page.messages.length ? `${page.messages[0].position} to ${page.messages.at(-1).position}` : "";
  return page.readable === page.confirmed ? range : `${range}. Consumers may read up to ${page.readable}; an open transaction holds back the rest.`;
}

function emptyText(page, query) {
  if (query.get("from") && page.older !== null) return "There is nothing here yet. Go to older messages.";
  return "The log has no messages here.";
}

function Ask({ query, go, log, logs }) {
  const from = query.get("from") ?? "";
  const isTime = /^\d+$/.test(from);
  const [place, setPlace] = useState(isTime || from === "earliest" ? "" : from || query.get("before") || "");
  const [time, setTime] = useState(isTime ? localTime(Number(from)) : "");
  const submit = (event) => {
    event.preventDefault();
    if (time) go({ from: String(new Date(time).getTime()) });
    else go({ from: place.trim() });
  };
  return html`<form class="panel inline-form" onSubmit=${submit}>
    <label class="field">Log<select value=${log} onChange=${(event) => go({ log: event.target.value })}>${logs.map((one) => html`<option value=${one.name}>${one.label}</option>`)}</select></label>
    <label class="field">From position<input value=${place} placeholder="5:0, earliest or latest" onInput=${(event) => { setPlace(event.target.value); setTime(""); }} autocomplete="off" spellcheck=${false} data-search /></label>
    <label class="field">or from time<input type="datetime-local" step="1" value=${time} onInput=${(event) => { setTime(event.target.value); setPlace(""); }} /></label>
    <label class="field narrow">At most<select value=${query.get("count") ?? COUNTS[0]} onChange=${(event) => replaceQuery({ count: event.target.value })}>${COUNTS.map((count) => html`<option>${count}</option>`)}</select></label>
    <button class="primary">Show</button>
  </form>`;
}

function localTime(ms) {
  const time = new Date(ms - new Date(ms).getTimezoneOffset() * 60000);
  return Number.isNaN(time.getTime()) ? "" : time.toISOString().slice(0, 19);
}

function State({ row }) {
  const state = STATES[row.state];
  return html`<${Badge} tone=${state.tone} title=${state.text}><span aria-hidden="true">${state.sign}</span> ${row.state}<//>`;
}

function excerpt(row) {
  if (row.state === "marker") return row.problem;
  if (row.state === "damaged") return row.problem;
  if (row.isNull) return "(no value)";
  const text = row.value !== undefined ? JSON.stringify(row.value) : (row.text ?? (row.payload === undefined ? "" : hexOf(row.payload, 32)));
  return text.length > EXCERPT ? `${text.slice(0, EXCERPT)}…` : text;
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function hexOf(base64, most) {
  const data = bytesOf(base64);
  const shown = Array.from(data.slice(0, most), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return data.length > most ? `${shown} …` : shown;
}

// What consumers make of it, in a sentence.
function meaning(row, readable) {
  if (row.state === "committed" && isBehind(row.position, readable)) return "Consumers get it when the open transaction before it has ended.";
  return STATES[row.state].text;
}

function isBehind(position, other) {
  const [ledger, entry] = position.split(":").map(Number);
  const [upto, last] = other.split(":").map(Number);
  return ledger > upto || (ledger === upto && entry > last);
}

function Message({ row, topic, readable }) {
  const facts = [
    ["State", html`<${State} row=${row} /> ${meaning(row, readable)}`],
    ["Transaction", row.transaction && (topic.startsWith("topic://") ? html`<a href=${address("transactions")}>${row.transaction}</a>` : row.transaction)],
    ["Index", row.index === undefined ? null : `${number(row.index)}, which is Kafka's offset`],
    ["Stored", row.storedTime === undefined ? null : moment(row.storedTime)],
    ["Published", row.publishTime && moment(row.publishTime)],
    ["Event time", row.eventTime && moment(row.eventTime)],
    ["Producer", row.producer && html`<code>${row.producer}</code> ${row.sequenceId === undefined ? "" : `sends it as ${number(row.sequenceId)}`}`],
    ["Format", `${row.format ?? ""}${row.compression ? `, compressed as ${row.compression}` : ""}`],
    ["Part", row.part && `${row.part.number + 1} of ${row.part.parts} of a message of ${bytes(row.part.size)}`],
    ["Key", (row.key ?? row.keyBase64) && html`<code>${row.key ?? row.keyBase64}</code>${row.keyBase64 ? " (base64)" : ""}`],
    ["Ordering key", (row.orderingKey ?? row.orderingKeyBase64) && html`<code>${row.orderingKey ?? row.orderingKeyBase64}</code>`],
    ["Size", row.size === undefined ? null : `${bytes(row.size)}${row.cut ? ", cut here" : ""}`],
    ["Schema", row.schema && `${row.schema.type}, version ${row.schema.version}${row.schema.named ? "" : ", the latest; the message names none"}`],
  ].filter(([, value]) => value);
  const properties = Object.entries(row.properties ?? {});
  const shown = row.value !== undefined ? JSON.stringify(row.value, null, 2) : (row.text ?? null);
  return html`<${Panel} title=${`Message ${row.position}`}
    actions=${row.cut && html`<button class="quiet" onClick=${() => replaceQuery({ bytes: WHOLE_BYTES })}>Show up to 64 KiB</button>`}>
    <div class="chosen flat"><dl>${facts.map(([label, value]) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`)}</dl></div>
    ${row.problem && html`<div class="notice">${row.problem}</div>`}
    ${row.schema?.problem && html`<div class="notice">${row.schema.problem}</div>`}
    ${properties.length > 0 && html`<h3>Properties${row.propertiesLeftOut ? html` <small class="muted">and ${number(row.propertiesLeftOut)} more</small>` : ""}</h3>
      <${Table} caption="Properties" rows=${properties} rowKey=${([key]) => key} empty="" columns=${[
        { label: "Name", value: ([key]) => html`<code>${key}</code>` },
        { label: "Value", wide: true, value: ([, value]) => html`<code>${value}</code>` },
      ]} />`}
    ${row.payload !== undefined && html`<h3>Value ${row.value !== undefined ? html`<small class="muted">by its schema</small>` : ""} ${shown !== null && html`<${Copy} text=${shown} />`}</h3>
      <pre class="record">${shown ?? hexOf(row.payload, 4096)}</pre>`}
  <//>`;
}
