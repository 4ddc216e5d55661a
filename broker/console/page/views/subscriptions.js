// Subscriptions of all topics: those that need care first, then the largest backlogs. Each says how it is read.
import { html } from "../html.js";
import { Badge, Bar, Page, Panel, Search, Silent, Table, TopicLink } from "../parts.js";
import { address, replaceQuery } from "../router.js";
import { number, plural } from "../format.js";
import { useStream } from "../stream.js";

// Tone, label and advice by the broker's word for it (broker/console/reading.py).
const READING = {
  unloaded: ["", "not loaded", "No client uses its topic. Open it to load its segments and count what is left to read."],
  current: ["good", "has read everything", ""],
  nobody: ["bad", "nobody reads", "Start its consumers. If nobody needs it any more, delete it, so that its messages can be removed."],
  away: ["bad", "Spark's driver is away", "A Spark query or job read it last, and its driver has ended. Start it again. If nobody needs it any more, delete the subscription."],
  spark: ["", "Spark", "A Spark query or job holds it, and moves it after each batch."],
  sent: ["", "all sent, not acknowledged", "Its consumers have got all of it. If that lasts, they do not acknowledge: look at them, and restart them."],
  blocked: ["bad", "holds all it may", "Its consumers hold as many messages as they may. Restart those that do not acknowledge."],
  idle: ["warn", "consumers ask for nothing", "Its consumers are connected and take no messages. Restart them if that lasts."],
  partly: ["", "is read in part", "No consumer is connected to some of its segments. They may wait for the segments before them."],
  going: ["good", "is read", ""],
};
const CHOICES = [["all", "All"], ["stuck", "Needs care"], ["spark", "Spark"]];
const EMPTY = { all: "There is no subscription on a topic of this cluster.", stuck: "No subscription needs care.", spark: "No Spark query or job holds a subscription now, or left one with a backlog." };

export function Subscriptions({ query }) {
  const search = query.get("search") ?? "";
  const only = query.get("only") ?? "all";
  const stream = useStream("subscriptions", { search, only });
  const { parts } = stream;
  const most = Math.max(1, ...(parts?.subscriptions ?? []).map((one) => one.backlog ?? 0));
  const link = (one) => address("topics", one.topic, { subscription: one.name });
  return html`<${Page} title="Subscriptions" stream=${stream} lead=${parts && `${plural(parts.total, "subscription")}. ${parts.stuck ? `${plural(parts.stuck, "subscription needs", "subscriptions need")} care.` : "None needs care."}`}>
    <div class="toolbar"><${Search} value=${search} label="Search subscriptions and topics" />
      <div class="choice" role="group" aria-label="Which">
        ${CHOICES.map(([key, label]) => html`<button aria-pressed=${only === key ? "true" : "false"} onClick=${() => replaceQuery({ only: key === "all" ? "" : key })}>${label}</button>`)}
      </div></div>
    ${parts && html`<${Silent} silent=${parts.silent} />
    <${Panel} flush><${Table} caption="Subscriptions" rows=${parts.subscriptions} rowKey=${(one) => `${one.topic} ${one.name}`}
      empty=${search ? `No subscription here matches “${search}”.` : EMPTY[only]}
      onOpen=${(one) => (location.hash = link(one))}
      columns=${[
        { label: "Subscription", wide: true, value: (one) => html`<a class="name" href=${link(one)}><b>${one.name}</b><span>${one.type.toLowerCase()}</span></a>` },
        { label: "Topic", value: (one) => html`<${TopicLink} name=${one.topic} />` },
        { label: "State", value: (one) => html`<${State} one=${one} />` },
        { label: "Backlog", numeric: true, value: (one) => html`<span>${number(one.backlog)} <${Bar} value=${one.backlog ?? 0} most=${most} /></span>` },
        { label: "Not acknowledged", numeric: true, value: (one) => number(one.unacked) },
        { label: "Consumers", numeric: true, value: (one) => number(one.consumers.length) },
      ]} /><//>
      ${parts.matched > parts.subscriptions.length && html`<p class="muted">${number(parts.matched - parts.subscriptions.length)} more have a smaller backlog. Search to find them.</p>`}`}
  <//>`;
}

function State({ one }) {
  const [tone, label, advice] = READING[one.reading];
  return html`<span><${Badge} tone=${tone} title=${advice}>${label}<//>${tone && advice && html`<br /><small class="muted">${advice}</small>`}</span>`;
}
