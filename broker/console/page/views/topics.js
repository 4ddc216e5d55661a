// All topics: a page of them, searched and sorted by the broker.
import { html, useState } from "../html.js";
import { Badge, Bar, Page, Pager, Panel, Search, Table, TopicLink } from "../parts.js";
import { address, replaceQuery } from "../router.js";
import { number, plural, short } from "../format.js";
import { useStream } from "../stream.js";
import { actions, useActions } from "../actions.js";

export function Topics({ query }) {
  const search = query.get("search") ?? "";
  const sort = query.get("sort") ?? "name";
  const stream = useStream("topics", { search, sort, first: query.get("first") });
  const [dialog, ask] = useActions();
  const [isCreating, setCreating] = useState(false);
  const { parts } = stream;
  const most = Math.max(1, ...(parts?.topics ?? []).map((topic) => topic.load.in));
  return html`<${Page} title="Topics" stream=${stream} lead=${parts && `${plural(parts.total, "topic")}. Rates are averages of the last minute.`}
    actions=${html`<button class="primary" onClick=${() => setCreating(true)}>Create a topic</button>`}>
    ${isCreating && html`<${Create} onCancel=${() => setCreating(false)} onAsk=${(action) => { setCreating(false); ask(action); }} />`}
    <div class="toolbar"><${Search} value=${search} label="Search topics" />
      <div class="choice" role="group" aria-label="Order">
        ${[["name", "By name"], ["load", "By load"]].map(([key, label]) => html`<button aria-pressed=${sort === key ? "true" : "false"} onClick=${() => replaceQuery({ sort: key === "name" ? "" : key, first: "" })}>${label}</button>`)}
      </div></div>
    ${parts && html`<${Panel} flush><${Table} caption="Topics" rows=${parts.topics} rowKey=${(topic) => topic.name}
      empty=${search ? `No topic's name contains “${search}”.` : "There are no topics yet. Create one here, or with `tidewire topics create`."}
      onOpen=${(topic) => (location.hash = address("topics", topic.name))}
      columns=${[
        { label: "Topic", wide: true, value: (topic) => html`<${TopicLink} name=${topic.name} />` },
        { label: "Kind", value: (topic) => html`<${Kind} topic=${topic} />` },
        { label: "Segments", numeric: true, value: (topic) => segments(topic) },
        { label: "Subscriptions", numeric: true, value: (topic) => (topic.subscriptions === undefined ? "" : number(topic.subscriptions)) },
        { label: "In", numeric: true, value: (topic) => (topic.kind === "scalable" ? html`${short(topic.load.in)}/s <${Bar} value=${topic.load.in} most=${most} />` : "") },
        { label: "Out", numeric: true, value: (topic) => (topic.kind === "scalable" ? `${short(topic.load.out)}/s` : "") },
      ]} /><//>
      <${Pager} first=${parts.first} page=${parts.page} matched=${parts.matched} />`}
    ${dialog}
  <//>`;
}

function segments(topic) {
  if (topic.active === undefined) return "";
  if (!topic.sealed) return number(topic.active);
  return html`<span>${number(topic.active)} <small class="muted" title="sealed">+${number(topic.sealed)}</small></span>`;
}

function Kind({ topic }) {
  if (topic.problem) return html`<${Badge} tone="bad" title=${topic.problem}>damaged<//>`;
  if (topic.deleting) return html`<${Badge} tone="warn">being deleted<//>`;
  return html`<span class="muted">${topic.kind}</span>${topic.changing && html` <${Badge} tone="warn">changes<//>`}`;
}

function Create({ onCancel, onAsk }) {
  const [name, setName] = useState("");
  const [segments, setSegments] = useState(1);
  const full = name.includes("/") ? name : `public/default/${name}`;
  const submit = (event) => {
    event.preventDefault();
    const topic = `topic://${full.replace(/^topic:\/\//, "")}`;
    onAsk({ ...actions.create(topic, segments), onDone: () => (location.hash = address("topics", topic)) });
  };
  return html`<form class="panel inline-form" onSubmit=${submit}>
    <label class="field">Name<input required value=${name} onInput=${(event) => setName(event.target.value.trim())} placeholder="orders, or tenant/namespace/orders" autofocus spellcheck=${false} autocomplete="off" /></label>
    <label class="field narrow">Segments<input type="number" min="1" max="1024" value=${segments} onInput=${(event) => setSegments(Number(event.target.value))} /></label>
    <div class="buttons"><button type="button" onClick=${onCancel}>Cancel</button><button class="primary" disabled=${!name}>Create…</button></div>
  </form>`;
}
