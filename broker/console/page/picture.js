// The picture of a topic: segments as ranges of hashes over time. The layout of the picture is pure; see `place`.
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { clock, duration, hash, short } from "./format.js";

const HASHES = 65536;
const LEFT = 44;
const BOTTOM = 26;
const TOP = 8;
const COLUMN_MIN = 34;

// Where the columns between the changes of a layout begin. Long times take less room than their share, so that a split
// of a minute ago stays visible beside a topic's first week.
export function place(segments, now, width) {
  const moments = new Set();
  for (const segment of segments) {
    moments.add(segment.createdAtMs);
    if (segment.sealedAtMs >= 0) moments.add(segment.sealedAtMs);
  }
  const starts = [...moments].sort((one, other) => one - other).filter((at) => at <= now);
  // Segments that a split replaces are sealed and created within one change.
  const changes = starts.filter((at, index) => index === 0 || at - starts[index - 1] > 50);
  const lengths = changes.map((at, index) => Math.max(1000, (changes[index + 1] ?? Math.max(now, at + 4000)) - at));
  const weights = lengths.map((length) => Math.sqrt(length));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const room = Math.max(60, width - LEFT);
  const least = Math.min(COLUMN_MIN, room / weights.length / 1.5);
  const spare = room - least * weights.length;
  const columns = [];
  let x = LEFT;
  weights.forEach((weight, index) => {
    const wide = least + (spare * weight) / total;
    columns.push({ from: changes[index], to: changes[index] + lengths[index], x, width: wide });
    x += wide;
  });
  const at = (moment) => {
    const column = columns.findLast((one) => one.from <= moment + 50) ?? columns[0];
    if (!column) return LEFT;
    const share = Math.min(1, Math.max(0, (moment - column.from) / (column.to - column.from)));
    return Math.abs(moment - column.from) <= 50 ? column.x : column.x + share * column.width;
  };
  return { columns, at, right: x };
}

export function Picture({ layout, lives, selected, onSelect, now }) {
  const box = useRef(null);
  const [width, setWidth] = useState(720);
  useLayoutEffect(() => {
    const element = box.current;
    setWidth(element.clientWidth);
    const sizes = new ResizeObserver(() => setWidth(element.clientWidth));
    sizes.observe(element);
    return () => sizes.disconnect();
  }, []);
  const segments = Object.values(layout.segments);
  const isNarrow = width < 560;
  const height = isNarrow ? 300 : 380;
  const inner = height - TOP - BOTTOM;
  const intent = layout.intent;
  const future = intent ? Math.min(90, width * 0.14) : 0;
  const { columns, at, right } = place(segments, now, width - future - 4);
  const y = (value) => TOP + (value / HASHES) * inner;
  const most = Math.max(1, ...segments.map((segment) => lives[segment.segmentId]?.rateIn ?? 0));
  const ordered = [...segments].sort((one, other) => one.segmentId - other.segmentId);
  const move = (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const index = ordered.findIndex((segment) => segment.segmentId === selected);
    const next = ordered[(index + steps[event.key] + ordered.length) % ordered.length];
    onSelect(next.segmentId);
  };
  const [top, middle] = [0, HASHES / 2];
  return html`<div class="picture" ref=${box}>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="listbox" tabindex="0" onKeyDown=${move}
      aria-label="Segments as hash ranges over time. Use the arrow keys to choose a segment." aria-activedescendant=${selected === null ? undefined : `segment-${selected}`}>
      <defs>
        <pattern id="backlog" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" class="hatch" /></pattern>
      </defs>
      ${[top, HASHES / 4, middle, (3 * HASHES) / 4, HASHES].map((value) => html`<g class="grid">
        <line x1=${LEFT} x2=${right} y1=${y(value)} y2=${y(value)} />
        <text x=${LEFT - 6} y=${y(value) + (value === 0 ? 9 : value === HASHES ? -1 : 4)} text-anchor="end">${hash(Math.min(value, HASHES - 1))}</text>
      </g>`)}
      ${columns.map((column, index) => {
        const isLabelled = index === 0 || column.x - LEFT > 74;
        return html`<g class="grid"><line x1=${column.x} x2=${column.x} y1=${TOP} y2=${height - BOTTOM} class="change" />
          ${isLabelled && column.width > 54 && html`<text x=${column.x} y=${height - 9} text-anchor=${index === 0 ? "start" : "middle"}>${clock(column.from)}</text>`}</g>`;
      })}
      ${ordered.map((segment) => html`<${Band} key=${segment.segmentId} segment=${segment} live=${lives[segment.segmentId] ?? {}} most=${most}
        x=${at(segment.createdAtMs)} end=${segment.sealed ? at(segment.sealedAtMs) : right} y=${y(segment.hashRange.start)}
        bottom=${y(segment.hashRange.end + 1)} isSelected=${segment.segmentId === selected} onSelect=${onSelect} isLeaving=${intent?.parents.includes(segment.segmentId)} />`)}
      ${intent?.children.map((child) => layout.segments[child.id] ? null : html`<g class="coming"><rect x=${right + 3} width=${Math.max(8, future - 3)} y=${y(child.start) + 1} height=${Math.max(2, y(child.end + 1) - y(child.start) - 2)} rx="3" />
        ${y(child.end + 1) - y(child.start) > 16 && html`<text x=${right + 10} y=${(y(child.start) + y(child.end + 1)) / 2 + 4}>${child.id}</text>`}</g>`)}
      <line class="now" x1=${right} x2=${right} y1=${TOP} y2=${height - BOTTOM} />
      <text class="now-label" x=${right} y=${height - 9} text-anchor="end">now</text>
    </svg>
    <p class="legend" aria-hidden="true"><span><i class="key active"></i>takes messages, stronger with its rate</span><span><i class="key sealed"></i>sealed</span><span><i class="key hatched"></i>has a backlog</span><span class="scale">Long times are drawn shorter.</span></p>
  </div>`;
}

function Band({ segment, live, most, x, end, y, bottom, isSelected, onSelect, isLeaving }) {
  const wide = Math.max(2, end - x - 1.5);
  const high = Math.max(1, bottom - y - 1.5);
  const share = segment.active ? 0.16 + 0.6 * Math.sqrt((live.rateIn ?? 0) / most) * (live.rateIn > 0 ? 1 : 0) : 1;
  const kind = segment.active ? "active" : "sealed";
  const label = `Segment ${segment.segmentId}, hashes ${hash(segment.hashRange.start)} to ${hash(segment.hashRange.end)}, ${segment.active ? "active" : "sealed"}` +
    (live.isKnown ? `, ${short(live.rateIn)} messages a second in, backlog ${short(live.backlog)}` : "");
  const lines = [];
  if (high >= 15 && wide >= 26) lines.push(`${segment.segmentId}`);
  if (segment.active && live.isKnown && high >= 34 && wide >= 84) lines.push(`${short(live.rateIn)}/s in`);
  if (live.isKnown && high >= 49 && wide >= 84 && live.subscriptions > 0) lines.push(`${short(live.backlog)} behind`);
  return html`<g id=${`segment-${segment.segmentId}`} class=${`band ${kind} ${isSelected ? "selected" : ""} ${isLeaving ? "leaving" : ""}`} role="option" aria-selected=${isSelected ? "true" : "false"} aria-label=${label} onClick=${() => onSelect(segment.segmentId)}>
    <title>${label}</title>
    <rect class="fill" x=${x} y=${y} width=${wide} height=${high} rx="3" fill-opacity=${share} />
    ${live.backlog > 0 && html`<rect x=${x} y=${y} width=${wide} height=${high} rx="3" fill="url(#backlog)" class="hatched" />`}
    <rect class="edge" x=${x + 0.5} y=${y + 0.5} width=${Math.max(1, wide - 1)} height=${Math.max(1, high - 1)} rx="3" />
    ${lines.map((line, index) => html`<text x=${x + 7} y=${y + 15 + 15 * index} class=${index === 0 ? "id" : ""}>${line}</text>`)}
    ${high >= 15 && wide >= 150 && segment.sealed && html`<text x=${x + wide - 7} y=${y + 15} text-anchor="end" class="aside">lived ${duration(segment.sealedAtMs - segment.createdAtMs)}</text>`}
  </g>`;
}
