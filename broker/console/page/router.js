// Which view is shown: the part of the address behind #. `#/topics/topic%3A%2F%2F...?search=x`
import { useLayoutEffect, useState } from "./html.js";

export function parse(text) {
  const [path, query = ""] = text.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/");
  return { view: view || "overview", name: rest.map(decodeURIComponent).join("/"), query: new URLSearchParams(query) };
}

export function address(view, name = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== 0);
  const text = new URLSearchParams(given).toString();
  return `#/${view}${name ? `/${encodeURIComponent(name)}` : ""}${text ? `?${text}` : ""}`;
}

// Change the query of the address without a new entry in the history.
export function replaceQuery(change) {
  const route = parse(location.hash);
  const query = { ...Object.fromEntries(route.query), ...change };
  history.replaceState(null, "", address(route.view, route.name, query));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  // Before the page is first painted: an address that changes right after that is heard.
  useLayoutEffect(() => {
    const follow = () => setRoute(parse(location.hash));
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  return route;
}
