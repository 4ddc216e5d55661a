// The settings of the broker that serves this page.
import { html } from "../html.js";
import { Badge, Page, Panel, Table } from "../parts.js";
import { useStream } from "../stream.js";

export function Settings() {
  const stream = useStream("settings");
  const { parts } = stream;
  return html`<${Page} title="Settings" stream=${stream} lead=${parts && `Broker ${parts.broker}, release ${parts.settings.release}. Settings are read at the start of the broker.`}>
    ${parts && html`<${Panel} flush><${Table} caption="Settings" rows=${parts.settings.rows} rowKey=${(one) => one.name} empty="There are none."
      columns=${[
        { label: "Setting", wide: true, value: (one) => html`<code>${one.name}</code>` },
        { label: "Value", value: (one) => html`<code>${one.value}</code> ${one.is_default ? "" : html`<${Badge} tone="good">set<//>`}` },
        { label: "Default", value: (one) => html`<span class="muted">${one.default}</span>` },
      ]} /><//>`}
  <//>`;
}
