// How numbers, times and names are written. Pure.

const UNITS = ["", "k", "M", "G", "T"];

export function number(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

// Three significant digits: 0, 7.5, 312, 1.2k.
export function short(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 9.95 ? 1 : 0;
  return value.toFixed(value === 0 ? 0 : digits) + UNITS[unit];
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit > 0 && value < 9.95 ? 1 : 0)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, ms / 1000);
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = seconds / 60;
  if (minutes < 90) return `${Math.round(minutes)} min`;
  const hours = minutes / 60;
  if (hours < 36) return `${hours.toFixed(hours < 10 ? 1 : 0)} h`;
  return `${Math.round(hours / 24)} days`;
}

export function clock(ms) {
  const time = new Date(ms);
  const text = time.toLocaleTimeString("en-GB", { hour12: false });
  return time.toDateString() === new Date().toDateString()
    ? text
    : `${time.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${text.slice(0, 5)}`;
}

// Producers may give any number as a time. One that no calendar has stays a number.
export function moment(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const time = new Date(ms);
  return Number.isNaN(time.getTime()) ? `${number(ms)} ms` : time.toISOString().replace("T", " ").replace("Z", " UTC");
}

export function hash(value) {
  return value.toString(16).padStart(4, "0");
}

export function plural(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many || `${one}s`}`;
}

// The name of a topic in parts: its domain, its namespace and its own name.
export function parts(name) {
  const [domain, rest = ""] = name.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  return { domain, namespace: `${tenant}/${namespace}`, local: local.join("/") };
}

// The path of a topic below /admin/v2/scalable or /admin/v2/persistent.
export function path(name) {
  return name.split("://")[1].split("/").map(encodeURIComponent).join("/");
}
