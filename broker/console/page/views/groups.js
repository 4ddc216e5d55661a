// Groups of Kafka's consumers; one of them with its partitions and lags.
import { html } from "../html.js";
import { At, Badge, Page, Panel, Search, Table, Tile } from "../parts.js";
import { address } from "../router.js";
import { number, plural } from "../format.js";
import { useStream } from "../stream.js";

export function Groups({ query }) {
  const search = query.get("search") ?? "";
  const stream = useStream("groups", { search });
  const { parts } = stream;
  return html`<${Page} title="Kafka groups" stream=${stream} lead=${parts && plural(parts.total, "group")}>
    <div class="toolbar"><${Search} value=${search} label="Search groups" /></div>
    ${parts && html`<${Panel} flush><${Table} caption="Groups" rows=${parts.groups} rowKey=${(group) => group.name}
      empty=${search ? `No group's name contains “${search}”.` : "No Kafka consumer has joined a group or committed an offset."}
      onOpen=${(group) => (location.hash = address("groups", group.name))}
      columns=${[
        { label: "Group", wide: true, value: (group) => html`<a class="name" href=${address("groups", group.name)}><b>${group.name}</b></a>` },
        { label: "Members", numeric: true, value: (group) => (group.problem ? html`<${Badge} tone="bad" title=${group.problem}>damaged<//>` : number(group.members_total)) },
        { label: "Generation", numeric: true, value: (group) => number(group.generation) },
        { label: "Assignment", value: (group) => group.protocol ?? html`<span class="muted">none</span>` },
        { label: "Since", value: (group) => group.since_ms && html`<${At} ms=${group.since_ms} />` },
      ]} /><//>`}
  <//>`;
}

export function Group({ name }) {
  const stream = useStream("group", { name });
  const { parts } = stream;
  const lag = (one) => (one.end === null || one.offset === null ? null : Math.max(0, one.end - one.offset));
  const total = parts?.offsets.reduce((sum, one) => sum + (lag(one) ?? 0), 0) ?? 0;
  const holders = {};
  for (const member of parts?.group?.members ?? []) {
    for (const [topic, numbers] of member.partitions) for (const one of numbers) holders[`${topic} ${one}`] = member;
  }
  return html`<${Page} title=${name} stream=${stream} crumb=${html`<a href=${address("groups")}>Kafka groups</a>`}>
    ${parts && (parts.group === null
      ? html`<div class="notice">There is no group of this name. A consumer that joins makes it.</div>`
      : html`<div class="tiles">
          <${Tile} label="Lag" value=${number(total)} note="messages over all partitions" />
          <${Tile} label="Members" value=${number(parts.group.members_total)} note=${parts.group.protocol ? `assigned by ${parts.group.protocol}` : "no generation"} />
          <${Tile} label="Generation" value=${number(parts.group.generation)} />
        </div>
        <${Panel} title="Partitions" flush><${Table} caption="Partitions" rows=${parts.offsets} rowKey=${(one) => `${one.topic} ${one.partition}`} empty="It has committed no offsets."
          columns=${[
            { label: "Topic", wide: true, value: (one) => html`<b>${one.topic}</b>` },
            { label: "Partition", numeric: true, value: (one) => one.partition },
            { label: "Committed", numeric: true, value: (one) => number(one.offset) },
            { label: "End", numeric: true, value: (one) => html`<span title=${one.end === null ? "No broker has this partition loaded." : ""}>${number(one.end)}</span>` },
            { label: "Lag", numeric: true, value: (one) => html`<span class=${lag(one) ? "lag" : ""}>${number(lag(one))}</span>` },
            { label: "Read by", value: (one) => holders[`${one.topic} ${one.partition}`]?.client ?? html`<span class="muted">nobody</span>` },
          ]} /><//>
        <${Panel} title="Members" flush><${Table} caption="Members" rows=${parts.group.members ?? []} rowKey=${(one) => one.id} empty="No member is in the group."
          columns=${[
            { label: "Client", wide: true, value: (one) => html`<b>${one.client}</b><br /><small class="muted">${one.id}</small>` },
            { label: "Host", value: (one) => one.host },
            { label: "Partitions", value: (one) => html`<code>${one.partitions.map(([topic, numbers]) => `${topic} ${numbers.join(",")}`).join("  ") || "none"}</code>` },
          ]} /><//>`)}
  <//>`;
}
