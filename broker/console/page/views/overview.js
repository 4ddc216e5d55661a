// The first view: rates of the whole cluster, open transactions, and what needs attention.
import { html, useRef } from "../html.js";
import { Badge, Page, Panel, Table, Tile, Bar } from "../parts.js";
import { Chart } from "../chart.js";
import { Doctor, useDoctor, verdict } from "../doctor.js";
import { Meters } from "../rates.js";
import { address } from "../router.js";
import { bytes, duration, number, plural, short } from "../format.js";
import { useStream, useTicks } from "../stream.js";

const WINDOW_SECONDS = 180;
const COUNTERS = ["messages_in", "messages_out", "bytes_in", "bytes_out"];

export function Overview() {
  const meters = useRef(new Meters());
  const series = useRef([[], [], []]);
  const stream = useStream("overview", {}, (parts, at) => {
    for (const [broker, told] of Object.entries(parts.told)) {
      for (const name of COUNTERS) if (told.counters) meters.current.push(at, `${broker} ${name}`, told.counters[name]);
      for (const [what, counts] of Object.entries(told.latencies ?? {})) {
        counts.forEach((count, index) => meters.current.push(at, `${broker} ${what} ${index}`, count));
      }
    }
    meters.current.keep(Object.keys(parts.told).map((broker) => `${broker} `));
  });
  const doctor = useDoctor();
  useTicks(stream.status === "live", 1000);
  const { parts } = stream;
  const now = stream.now();
  const rate = (name, broker = null) => (broker ? meters.current.rate(now, `${broker} ${name}`) : meters.current.sum(now, ` ${name}`));
  if (parts && stream.status === "live") record(series.current, rate("messages_in"), rate("messages_out"));
  return html`<${Page} title="Overview" lead=${parts && lead(parts, doctor)} stream=${stream}>
    ${parts && html`<${Body} parts=${parts} doctor=${doctor} rate=${rate} data=${series.current} latency=${(what, share) => {
      const bounds = Object.values(parts.told).find((told) => told.bounds_ms)?.bounds_ms ?? [];
      return meters.current.quantile(now, what, bounds, share);
    }} />`}
  <//>`;
}

function lead(parts, doctor) {
  const topics = parts.topics.scalable + parts.topics.partitioned;
  return `${plural(parts.brokers.length, "broker")}, ${plural(topics, "topic")}. ${verdict(doctor) || (parts.attention.length ? "" : "Nothing needs attention.")}`;
}

// One point a second at most. Frames in between change the last point.
function record(data, into, out) {
  const seconds = Date.now() / 1000;
  const [times, ins, outs] = data;
  if (times.length && seconds - times.at(-1) < 0.9) return;
  times.push(seconds);
  ins.push(into);
  outs.push(out);
  while (times.length && times[0] < seconds - WINDOW_SECONDS) {
    times.shift();
    ins.shift();
    outs.shift();
  }
}

// A median with the 99th percentile beside it.
function Latency({ label, what, latency }) {
  const [half, most] = [latency(what, 0.5), latency(what, 0.99)];
  return html`<${Tile} label=${label} value=${half === null ? "–" : millis(half)} unit=${half === null ? "" : "ms"} note=${half === null ? "none in the last 30 s" : `99 % within ${millis(most)} ms`} />`;
}

function millis(value) {
  return value < 10 ? value.toFixed(1) : number(value);
}

function Body({ parts, doctor, rate, data, latency }) {
  const counters = Object.values(parts.told).map((told) => told.counters).filter(Boolean);
  const sum = (name) => counters.reduce((total, one) => total + one[name], 0);
  const open = parts.transactions.open;
  const stall = Math.max(0, ...Object.values(parts.told).map((told) => told.stall_ms ?? 0));
  return html`
    ${parts.attention.length > 0 && html`<ul class="attention" aria-label="What needs attention">${parts.attention.map((one) => html`<li class=${one.level}><a href=${address(one.to, "", { only: one.only })}>${one.text}</a></li>`)}</ul>`}
    <div class="tiles">
      <${Tile} label="Messages in" value=${short(rate("messages_in"))} unit="/s" note=${`${bytes(rate("bytes_in"))}/s`} tone="in" />
      <${Tile} label="Messages out" value=${short(rate("messages_out"))} unit="/s" note=${`${bytes(rate("bytes_out"))}/s`} tone="out" />
      <${Latency} label="Publish, median" what="publish" latency=${latency} />
      <${Latency} label="Commit, median" what="commit" latency=${latency} />
      <${Latency} label="Delivery, median" what="delivery" latency=${latency} />
      <${Tile} label="Open transactions" value=${number(open)} note=${open ? `oldest for ${duration(Date.now() - parts.transactions.oldest_ms)}` : "none holds anything back"} href=${address("transactions")} />
      <${Tile} label="Clients" value=${number(sum("producers") + sum("consumers"))} note=${`${number(sum("producers"))} producers, ${number(sum("consumers"))} consumers`} />
      <${Tile} label="Longest stall" value=${duration(stall)} note="of an event loop since its start" />
    </div>
    <${Panel} title="Messages a second" note="the last three minutes">
      <${Chart} label="Messages in and out a second" seconds=${WINDOW_SECONDS} data=${data} series=${[{ label: "in", colour: "--in", fill: true }, { label: "out", colour: "--out" }]} />
    <//>
    <${Doctor} doctor=${doctor} />
    <${Panel} title="Brokers" flush>
      <${Brokers} parts=${parts} rate=${rate} />
    <//>`;
}

function Brokers({ parts, rate }) {
  const most = Math.max(1, ...parts.brokers.map((one) => rate("messages_in", one.broker)));
  return html`<${Table} caption="Brokers" rows=${parts.brokers} rowKey=${(one) => one.broker} empty="No broker is registered."
    onOpen=${(one) => (location.hash = address("cluster", "", { broker: one.broker }))}
    columns=${[
      { label: "Broker", value: (one) => html`<a class="name" href=${address("cluster", "", { broker: one.broker })}><b>${one.broker}</b></a>` },
      { label: "State", value: (one) => html`<${State} state=${one.state} />` },
      { label: "In", numeric: true, value: (one) => html`${short(rate("messages_in", one.broker))}/s <${Bar} value=${rate("messages_in", one.broker)} most=${most} />` },
      { label: "Out", numeric: true, value: (one) => `${short(rate("messages_out", one.broker))}/s` },
      { label: "Segments", numeric: true, value: (one) => number(one.claims.segments) },
      { label: "Topics", numeric: true, value: (one) => number(one.claims.topics) },
      { label: "Connections", numeric: true, value: (one) => number(parts.told[one.broker]?.counters?.connections) },
    ]} />`;
}

export function State({ state }) {
  const tone = { running: "good", draining: "warn", gone: "bad" }[state] ?? "";
  return html`<${Badge} tone=${tone}>${state}<//>`;
}
