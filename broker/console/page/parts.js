// What several views use: tables, tiles, a search field, names, and states of a stream.
import { Fragment, html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { address, parse, replaceQuery } from "./router.js";
import { clock, duration, number, parts as nameParts } from "./format.js";

export function Page({ title, crumb, lead, actions, stream, children }) {
  useEffect(() => {
    document.title = `${title} · Tidewire`;
  }, [title]);
  const isStale = stream && stream.status === "lost" && stream.parts;
  return html`<section class="page" aria-busy=${stream && !stream.parts ? "true" : "false"}>
    <header class="page-head">
      <div>
        ${crumb && html`<nav class="crumb" aria-label="Breadcrumb">${crumb}</nav>`}
        <h1 tabindex="-1">${title}</h1>
        ${lead && html`<p class="lead">${lead}</p>`}
      </div>
      ${actions && html`<div class="page-actions">${actions}</div>`}
    </header>
    ${stream && !stream.parts
      ? stream.status === "lost"
        ? html`<div class="notice error" role="alert">${stream.reason} Trying again…</div>`
        : html`<${Skeleton} />`
      : html`${isStale && html`<div class="notice error" role="alert">${stream.reason} What you see is of before. Trying again…</div>`}
          ${stream?.isOld && html`<div class="notice" role="status">The broker has another release now. <button class="link" onClick=${() => location.reload()}>Load the page again</button></div>`}
          <div class=${isStale ? "body stale" : "body"}>${children}</div>`}
  </section>`;
}

function Skeleton() {
  return html`<div class="skeleton" role="status"><span class="visually-hidden">Loading…</span><i></i><i></i><i></i></div>`;
}

export function Tile({ label, value, unit, note, href, tone }) {
  const inside = html`<span class="tile-label">${label}</span>
    <span class="tile-value">${value}${unit && html`<small>${unit}</small>`}</span>
    <span class="tile-note">${note}</span>`;
  return href
    ? html`<a class=${`tile ${tone || ""}`} href=${href}>${inside}</a>`
    : html`<div class=${`tile ${tone || ""}`}>${inside}</div>`;
}

export function Panel({ title, note, actions, children, flush }) {
  return html`<section class=${flush ? "panel flush" : "panel"}>
    ${(title || actions) && html`<header><h2>${title}${note && html` <small>${note}</small>`}</h2>${actions}</header>`}
    ${children}
  </section>`;
}

// A table whose rows become cards on a narrow screen. A column: {label, value(row), numeric, wide}.
export function Table({ columns, rows, rowKey, onOpen, empty, caption }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="table-box"><table>
    ${caption && html`<caption class="visually-hidden">${caption}</caption>`}
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.numeric ? "num" : ""}>${column.label}</th>`)}</tr></thead>
    <tbody>
      ${rows.map((row) => html`<tr key=${rowKey(row)} class=${onOpen ? "opens" : ""} onClick=${onOpen && ((event) => {
        if (!event.target.closest("a, button") && !String(getSelection())) onOpen(row);
      })}>
        ${columns.map((column) => html`<td class=${column.numeric ? "num" : ""} data-label=${column.label}><div>${column.value(row)}</div></td>`)}
      </tr>`)}
    </tbody>
  </table></div>`;
}

export function Search({ value, label }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const asked = useRef(value);
  // What the field itself asked for comes back as its value. Letters that were typed since then stay.
  useLayoutEffect(() => {
    if (value !== asked.current) setText(value);
    asked.current = value;
  }, [value]);
  // Before the page is first painted: a field that goes right after that takes its timer along.
  useLayoutEffect(() => () => clearTimeout(timer.current), []);
  const change = (event) => {
    const wanted = event.target.value;
    const { view } = parse(location.hash);
    setText(wanted);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      // The address may name another view already. The browser tells of it late.
      if (parse(location.hash).view !== view) return;
      asked.current = wanted;
      replaceQuery({ search: wanted, first: "" });
    }, 200);
  };
  return html`<label class="search"><span class="visually-hidden">${label}</span>
    <input type="search" placeholder=${label} value=${text} onInput=${change} data-search autocomplete="off" spellcheck=${false} />
    <kbd aria-hidden="true">/</kbd></label>`;
}

export function Pager({ first, page, matched }) {
  if (matched <= page) return null;
  const go = (to) => () => replaceQuery({ first: to || "" });
  return html`<nav class="pager" aria-label="Pages">
    <button onClick=${go(Math.max(0, first - page))} disabled=${first === 0}>Previous</button>
    <span>${number(first + 1)}–${number(Math.min(matched, first + page))} of ${number(matched)}</span>
    <button onClick=${go(first + page)} disabled=${first + page >= matched}>Next</button>
  </nav>`;
}

export function TopicLink({ name }) {
  const { domain, namespace, local } = nameParts(name);
  return html`<a class="name" href=${address("topics", name)}><b>${local}</b><span>${domain}://${namespace}</span></a>`;
}

// Sentences of the broker's, in which backquotes enclose what people type.
export function Prose({ text }) {
  return text.split("`").map((piece, index) => (index % 2 ? html`<code>${piece}</code>` : piece));
}

export function Badge({ tone = "", children, title }) {
  return html`<span class=${`badge ${tone}`} title=${title}>${children}</span>`;
}

export function Since({ ms, now }) {
  return html`<time dateTime=${new Date(ms).toISOString()} title=${new Date(ms).toISOString()}>${duration((now ?? Date.now()) - ms)}</time>`;
}

export function At({ ms }) {
  return html`<time dateTime=${new Date(ms).toISOString()} title=${new Date(ms).toISOString()}>${clock(ms)}</time>`;
}

export function Silent({ silent }) {
  const reasons = Object.values(silent ?? {});
  return html`<${Fragment}>${reasons.map((reason) => html`<div class="notice error" role="alert">${reason} Its numbers are missing here.</div>`)}<//>`;
}

export function Copy({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  // Only pages from this machine or over TLS may use the clipboard.
  return navigator.clipboard ? html`<button type="button" class="quiet" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>` : null;
}

// The widest load is 100 %; the rest in proportion.
export function Bar({ value, most }) {
  const share = most > 0 ? Math.max(value > 0 ? 2 : 0, (100 * value) / most) : 0;
  return html`<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect width="100" height="4" class="bar-back" /><rect width=${share} height="4" class="bar-front" /></svg>`;
}
