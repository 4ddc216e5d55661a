// All subscriptions that a broker serves now, those with the largest backlog first.
import { html } from "../html.js";
import { Badge, Bar, Page, Panel, Search, Silent, Table, TopicLink } from "../parts.js";
import { address } from "../router.js";
import { number, plural } from "../format.js";
import { useStream } from "../stream.js";

export function Subscriptions({ query }) {
  const search = query.get("search") ?? "";
  const stream = useStream("subscriptions", { search });
  const { parts } = stream;
  const most = parts?.subscriptions[0]?.backlog ?? 1;
  return html`<${Page} title="Subscriptions" stream=${stream} lead=${parts && `${plural(parts.total, "subscription")} on loaded topics, the largest backlog first.`}>
    <div class="toolbar"><${Search} value=${search} label="Search subscriptions and topics" /></div>
    ${parts && html`<${Silent} silent=${parts.silent} />
    <${Panel} flush><${Table} caption="Subscriptions" rows=${parts.subscriptions} rowKey=${(one) => `${one.topic} ${one.name}`}
      empty=${search ? `No subscription on a loaded topic matches “${search}”.` : "No topic with a subscription is loaded."}
      onOpen=${(one) => (location.hash = address("topics", one.topic))}
      columns=${[
        { label: "Subscription", wide: true, value: (one) => html`<a class="name" href=${address("topics", one.topic)}><b>${one.name}</b></a>` },
        { label: "Topic", value: (one) => html`<${TopicLink} name=${one.topic} />` },
        { label: "Type", value: (one) => html`<${Badge}>${one.type.toLowerCase()}<//>` },
        { label: "Backlog", numeric: true, value: (one) => html`${number(one.backlog)} <${Bar} value=${one.backlog} most=${most} />` },
        { label: "Consumers", numeric: true, value: (one) => (one.consumers.length ? number(one.consumers.length) : html`<${Badge} tone=${one.backlog ? "warn" : ""}>none<//>`) },
      ]} /><//>
      ${parts.matched > parts.subscriptions.length && html`<p class="muted">${number(parts.matched - parts.subscriptions.length)} more have a smaller backlog. Search to find them.</p>`}`}
  <//>`;
}
