// The metadata store's keys as a tree, with what changes below it.
import { html } from "../html.js";
import { At, Badge, Page, Pager, Panel, Table } from "../parts.js";
import { address, replaceQuery } from "../router.js";
import { number, plural } from "../format.js";
import { useStream } from "../stream.js";

export function Metadata({ query }) {
  const prefix = query.get("prefix") ?? "/";
  const key = query.get("key");
  const stream = useStream("metadata", { prefix, key, first: query.get("first") });
  const { parts } = stream;
  // While other records come, those of before stay, with their own names.
  const nameOf = (one) => parts.prefix + one.name;
  const go = (to) => address("metadata", "", { prefix: to === "/" ? "" : to });
  return html`<${Page} title="Metadata" stream=${stream} lead=${parts && `${plural(parts.total, "record")} below this prefix. They are shown as they change, and cannot be changed here.`}
    crumb=${html`<${Crumbs} prefix=${prefix} go=${go} />`}>
    ${parts && html`<div class="columns">
      <${Panel} title="Keys" flush><${Table} caption="Keys" rows=${parts.level} rowKey=${(one) => one.name} empty="There are no records with this prefix."
        columns=${[
          { label: "Key", wide: true, value: (one) => one.is_record
              ? html`<button class="link" aria-pressed=${nameOf(one) === key ? "true" : "false"} onClick=${() => replaceQuery({ prefix: parts.prefix, key: nameOf(one) })}><code>${decoded(one.name)}</code></button>`
              : html`<a href=${go(nameOf(one))}><code>${decoded(one.name)}</code></a>` },
          { label: "Records", numeric: true, value: (one) => (one.is_record ? "" : number(one.records)) },
          { label: "Newest version", numeric: true, value: (one) => number(one.version) },
        ]} />
        <${Pager} first=${parts.first} page=${parts.page} matched=${parts.matched} /><//>
      <div>
        ${parts.key && html`<${Panel} title="Record" note=${parts.key}>${parts.record ? html`<pre class="record">${JSON.stringify(parts.record, null, 2)}</pre>` : html`<p class="empty">There is no such record now.</p>`}<//>`}
        <${Panel} title="Changes" note="since this page was opened" flush><${Table} caption="Changes" rows=${parts.changes} rowKey=${(one) => `${one.revision} ${one.key} ${one.what}`} empty="Nothing has changed below this prefix."
          columns=${[
            { label: "When", value: (one) => html`<${At} ms=${one.at_ms} />` },
            { label: "What", value: (one) => html`<${Badge} tone=${{ created: "good", deleted: "bad" }[one.what] ?? ""}>${one.what}<//>` },
            { label: "Key", wide: true, value: (one) => html`<code>${decoded(one.key)}</code>` },
          ]} /><//>
      </div>
    </div>`}
  <//>`;
}

function Crumbs({ prefix, go }) {
  const names = prefix.split("/").filter(Boolean);
  let path = "/";
  return html`<a href=${go("/")}>all</a>${names.map((name) => {
    path += `${name}/`;
    return html` <a href=${go(path)}>${decoded(name)}</a>`;
  })}`;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
