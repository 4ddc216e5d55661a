// The console's frame: navigation, theme, keys, and the view that the address names.
import { html, render, useLayoutEffect, useRef, useState } from "./html.js";
import { useRoute } from "./router.js";
import { Overview } from "./views/overview.js";
import { Topics } from "./views/topics.js";
import { Topic } from "./views/topic.js";
import { AnyMessages, Messages } from "./views/messages.js";
import { Subscriptions } from "./views/subscriptions.js";
import { Transactions } from "./views/transactions.js";
import { Group, Groups } from "./views/groups.js";
import { Cluster } from "./views/cluster.js";
import { Metadata } from "./views/metadata.js";
import { Settings } from "./views/settings.js";

const VIEWS = [
  { id: "overview", label: "Overview", key: "o", view: Overview, icon: "M3 12h4l3-8 4 16 3-8h4" },
  { id: "topics", label: "Topics", key: "t", view: Topics, detail: Topic, icon: "M4 5h16M4 10h10M4 15h16M4 20h7" },
  { id: "messages", label: "Messages", key: "p", view: AnyMessages, detail: Messages, icon: "M4 5h16v14H4zM4 6l8 7 8-7" },
  { id: "subscriptions", label: "Subscriptions", key: "s", view: Subscriptions, icon: "M4 6h16v9H9l-5 4z" },
  { id: "transactions", label: "Transactions", key: "x", view: Transactions, icon: "M4 8h14l-3-4M20 16H6l3 4" },
  { id: "groups", label: "Kafka groups", key: "k", view: Groups, detail: Group, icon: "M8 9a3 3 0 1 0 0-.1M16 9a3 3 0 1 0 0-.1M2 20c0-4 3-6 6-6s6 2 6 6M15 14c4 0 7 2 7 6" },
  { id: "cluster", label: "Cluster", key: "c", view: Cluster, icon: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.1M8 17h.1" },
  { id: "metadata", label: "Metadata", key: "m", view: Metadata, icon: "M6 3v18M6 8h6M6 17h6M12 5h8v6h-8zM12 14h8v6h-8z" },
  { id: "settings", label: "Settings", key: "e", view: Settings, icon: "M4 7h10M18 7h2M4 17h2M10 17h10M16 5v4M8 15v4" },
];
const THEMES = ["auto", "light", "dark"];

function useTheme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") ?? "auto");
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

// `g` and a letter goes to a view, `/` to the search field, `?` shows the keys.
function useKeys(onHelp) {
  const goes = useRef(false);
  useLayoutEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
      const view = goes.current && VIEWS.find((one) => one.key === event.key);
      goes.current = event.key === "g";
      if (view) {
        location.hash = `#/${view.id}`;
      } else if (event.key === "/") {
        const field = document.querySelector("[data-search]");
        if (!field) return;
        field.focus();
        field.select();
      } else if (event.key === "?") {
        onHelp();
      } else {
        return;
      }
      event.preventDefault();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}

function Help({ onClose }) {
  const dialog = useRef(null);
  useLayoutEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="keys-title" onClose=${onClose} onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <form method="dialog"><h2 id="keys-title">Keys</h2>
      <dl class="keys">${VIEWS.map((one) => html`<div><dt><kbd>g</kbd> <kbd>${one.key}</kbd></dt><dd>${one.label}</dd></div>`)}
        <div><dt><kbd>/</kbd></dt><dd>Search</dd></div><div><dt><kbd>←</kbd> <kbd>→</kbd></dt><dd>Choose a segment in a topic's picture</dd></div><div><dt><kbd>?</kbd></dt><dd>This list</dd></div></dl>
      <footer><button autofocus>Close</button></footer></form></dialog>`;
}

function App() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  // The number of the list of keys that is open, or 0. The browser tells of a closed one late: the next one may be open.
  const [help, setHelp] = useState(0);
  const [isOpen, setOpen] = useState(false);
  const showHelp = () => setHelp((last) => last + 1);
  useKeys(showHelp);
  useLayoutEffect(() => {
    setOpen(false);
    window.scrollTo(0, 0);
  }, [route.view, route.name]);
  const chosen = VIEWS.find((one) => one.id === route.view);
  const View = chosen && (route.name && chosen.detail ? chosen.detail : chosen.view);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main h1")?.focus(); }}>Skip to the content</a>
    <aside class=${isOpen ? "rail open" : "rail"}>
      <a class="brand" href="#/overview"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" class="brand-back" /><path d="M4 13c4-5 8-5 12 0s8 5 12 0M4 21c4-5 8-5 12 0s8 5 12 0" /></svg><b>Tidewire</b></a>
      <button class="menu" aria-expanded=${isOpen ? "true" : "false"} aria-controls="views" onClick=${() => setOpen(!isOpen)}>${isOpen ? "Close" : "Menu"}</button>
      <nav id="views" aria-label="Views">
        ${VIEWS.map((one) => html`<a href=${`#/${one.id}`} aria-current=${one.id === route.view ? "page" : undefined}><svg viewBox="0 0 24 24" aria-hidden="true"><path d=${one.icon} /></svg><span>${one.label}</span><kbd aria-hidden="true">g ${one.key}</kbd></a>`)}
      </nav>
      <footer><button class="quiet" onClick=${nextTheme} aria-label=${`Theme: ${theme}. Change it.`}>Theme: ${theme}</button><button class="quiet" onClick=${showHelp}>Keys <kbd>?</kbd></button></footer>
    </aside>
    <main id="main">${View ? html`<${View} key=${`${route.view} ${route.name}`} name=${route.name} query=${route.query} />` : html`<section class="page"><h1>There is no such view</h1><p><a href="#/overview">Go to the overview.</a></p></section>`}</main>
    ${help > 0 && html`<${Help} key=${help} onClose=${() => setHelp((open) => (open === help ? 0 : open))} />`}`;
}

render(html`<${App} />`, document.getElementById("app"));
