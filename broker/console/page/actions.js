// What the console can change. Each action asks for confirmation, and shows the command line that does the same.
import { ask } from "./asking.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { path } from "./format.js";
import { Copy } from "./parts.js";

function quote(text) {
  return /^[A-Za-z0-9_:/.=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

// The command line, for a shell. Whoever copies it has read the dialog, so it does not ask again: `--yes`.
function tidewire(command, names, ...options) {
  const all = [...options, "--http", `${location.hostname}:${location.port || 80}`];
  // A name may look like an option.
  const words = names.some((name) => String(name).startsWith("-")) ? [...all, "--", ...names] : [...names, ...all];
  return ["tidewire", command, ...words.map((word) => quote(String(word)))].join(" ");
}

const abortion = (id) => `/admin/v3/transactions/abortTransaction/${id.split(":").join("/")}`;
const scalable = (topic) => `/admin/v2/scalable/${path(topic)}`;
// What Pulsar's tools write for a subscription's name in a path: as in a form, where a space is a plus, and then encoded.
const form = (text) => encodeURIComponent(new URLSearchParams([["", text]]).toString().slice(1));
// A subscription's calls: Pulsar's for a regular topic, with other words for the same.
function subscriptionCalls(topic, name) {
  if (topic.startsWith("topic://")) {
    const url = `${scalable(topic)}/subscriptions/${encodeURIComponent(name)}`;
    return { skip: `${url}/skip-all`, seek: (timestamp) => `${url}/seek?timestamp=${timestamp}`, remove: url };
  }
  const url = `/admin/v2/persistent/${path(topic)}/subscription/${form(name)}`;
  return { skip: `${url}/skip_all`, seek: (timestamp) => `${url}/resetcursor/${timestamp}`, remove: `${url}?force=true` };
}

export const actions = {
  create: (topic, segments) => ({
    title: `Create ${topic}`,
    text: `The topic begins with ${segments} ${segments === 1 ? "segment" : "segments"}.`,
    method: "PUT",
    url: `${scalable(topic)}?numInitialSegments=${segments}`,
    command: tidewire("topics create", [topic], "--segments", segments),
    button: "Create",
  }),
  split: (topic, segment) => ({
    title: `Split segment ${segment}`,
    text: "Two segments replace it, each with half of its hash range. Producers and consumers continue meanwhile.",
    method: "POST",
    url: `${scalable(topic)}/split/${segment}`,
    command: tidewire("segments split", [topic, segment]),
    button: "Split",
  }),
  merge: (topic, first, second) => ({
    title: `Merge segments ${first} and ${second}`,
    text: "One segment replaces both. Producers and consumers continue meanwhile.",
    method: "POST",
    url: `${scalable(topic)}/merge/${first}/${second}`,
    command: tidewire("segments merge", [topic, first, second], "--allow-fewer"),
    button: "Merge",
  }),
  removeTopic: (topic) => ({
    title: `Delete ${topic}`,
    text: "All its messages and subscriptions are deleted. This cannot be undone. Connected clients are disconnected.",
    method: "DELETE",
    url: `${scalable(topic)}?force=true`,
    command: tidewire("topics delete", [topic], "--force", "--yes"),
    button: "Delete the topic",
    typed: topic.split("/").at(-1),
    isDanger: true,
  }),
  skip: (topic, subscription) => ({
    title: `Skip the backlog of ${subscription}`,
    text: "Its consumers do not get what is readable now and not acknowledged.",
    method: "POST",
    url: subscriptionCalls(topic, subscription).skip,
    command: tidewire("subscriptions skip", [topic, subscription], "--yes"),
    button: "Skip the backlog",
    isDanger: true,
  }),
  seek: (topic, subscription, timestamp) => ({
    title: `Move ${subscription} to ${new Date(timestamp).toISOString()}`,
    text: "Its consumers go on with the first message that was published then or later. They get messages again, or miss some.",
    method: "POST",
    url: subscriptionCalls(topic, subscription).seek(timestamp),
    command: tidewire("subscriptions seek", [topic, subscription], "--to", new Date(timestamp).toISOString(), "--yes"),
    button: "Move it",
    isDanger: true,
  }),
  unsubscribe: (topic, subscription) => ({
    title: `Delete subscription ${subscription}`,
    text: "Its progress is lost, and its consumers are disconnected. This cannot be undone.",
    method: "DELETE",
    url: subscriptionCalls(topic, subscription).remove,
    command: tidewire("subscriptions unsubscribe", [topic, subscription], "--force", "--yes"),
    button: "Delete the subscription",
    typed: subscription,
    isDanger: true,
  }),
  abort: (id) => ({
    title: `Abort transaction ${id}`,
    text: "Nothing that was sent or acknowledged in it counts. Its application gets an error and may run it again.",
    method: "POST",
    url: abortion(id),
    command: tidewire("transactions abort", [id], "--yes"),
    button: "Abort it",
    isDanger: true,
  }),
  load: (topic) => ({
    title: `Load ${topic}`,
    text: "Brokers load all its segments and count what each subscription has left. They unload what nobody uses after two minutes.",
    method: "GET",
    url: `${scalable(topic)}/stats`,
    command: tidewire("topics show", [topic]),
    button: "Load it",
  }),
  unload: (topic) => ({
    title: `Unload ${topic}`,
    text: "Its owner releases it. The next client decides which broker loads it again. Clients reconnect by themselves.",
    method: "POST",
    url: "/admin/v2/cluster/unload",
    body: { topic },
    command: tidewire("cluster unload", [topic]),
    button: "Unload",
  }),
  drain: (broker) => ({
    title: `Drain ${broker}`,
    text: "It hands over everything that it owns and takes nothing new. Then it can be stopped.",
    method: "POST",
    url: `/admin/v2/cluster/brokers/${encodeURIComponent(broker)}/drain`,
    command: tidewire("cluster drain", [broker]),
    button: "Drain",
    isDanger: true,
  }),
  undrain: (broker) => ({
    title: `Let ${broker} take topics again`,
    text: "It takes new topics from now on. It does not take back those that it handed over.",
    method: "DELETE",
    url: `/admin/v2/cluster/brokers/${encodeURIComponent(broker)}/drain`,
    command: tidewire("cluster undrain", [broker]),
    button: "End the drain",
  }),
};

function perform(action) {
  return ask(action.url, {
    method: action.method,
    headers: action.body ? { "content-type": "application/json" } : {},
    body: action.body ? JSON.stringify(action.body) : undefined,
  });
}

// The dialog for an action. It stays open until the broker has answered, and shows a refusal.
export function Confirm({ action, onClose }) {
  const dialog = useRef(null);
  const [state, setState] = useState({ isBusy: false, reason: null });
  const [typed, setTyped] = useState("");
  // Before it is first painted: keys that are pressed right after that are for the dialog.
  useLayoutEffect(() => dialog.current.showModal(), []);
  const run = async (event) => {
    event.preventDefault();
    setState({ isBusy: true, reason: null });
    try {
      await perform(action);
      // Whoever has closed the dialog may have opened another one, or another view.
      if (!dialog.current?.open) return;
      dialog.current.close();
      action.onDone?.();
    } catch (failure) {
      setState({ isBusy: false, reason: failure instanceof TypeError ? "The broker does not answer. See whether it was done." : failure.message });
    }
  };
  const isReady = !action.typed || typed === action.typed;
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="confirm-title" onClose=${onClose} onClick=${(event) => event.target === dialog.current && dialog.current.close()}>
    <form onSubmit=${run}>
      <h2 id="confirm-title">${action.title}?</h2>
      <p>${action.text}</p>
      ${action.typed && html`<label class="field">Type <code>${action.typed}</code> to confirm
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" spellcheck=${false} /></label>`}
      <div class="command"><span>The same on the command line</span><pre><code>${action.command}</code></pre><${Copy} text=${action.command} /></div>
      ${state.reason && html`<div class="notice error" role="alert">${state.reason}</div>`}
      <footer>
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button type="submit" class=${action.isDanger ? "danger" : "primary"} disabled=${state.isBusy || !isReady}>${state.isBusy ? "Working…" : action.button}</button>
      </footer>
    </form>
  </dialog>`;
}

// A hook: [the open dialog or null, a function that opens one].
export function useActions() {
  const [asked, setAsked] = useState(null);
  const last = useRef(0);
  const close = ({ number, opener }) => {
    // The browser tells of a closed dialog late: the next one may be open.
    if (number !== last.current) return;
    setAsked(null);
    // The browser has given the focus back, unless what was clicked is gone, as the row of a transaction that has ended.
    if (!opener.isConnected) document.querySelector("main h1")?.focus();
  };
  return [
    asked && html`<${Confirm} key=${asked.number} action=${asked.action} onClose=${() => close(asked)} />`,
    (action) => {
      last.current += 1;
      setAsked({ action, number: last.current, opener: document.activeElement });
    },
  ];
}
