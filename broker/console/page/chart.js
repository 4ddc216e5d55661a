// A time series, drawn by uPlot. It takes the colours of the page, and draws again when the theme changes.
import uPlot from "./vendor/uplot.js";
import { html, useEffect, useRef } from "./html.js";
import { short } from "./format.js";

const HEIGHT = 190;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// `series`: [{label, colour: "--accent"}]; `data`: [seconds, values...]; `seconds`: the width of the window.
export function Chart({ series, data, seconds, label }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const element = box.current;
    const width = () => Math.max(200, element.clientWidth);
    const make = () => {
      plot.current?.destroy();
      const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot.current = new uPlot(
        {
          width: width(),
          height: HEIGHT,
          cursor: { points: { size: 6 }, y: false },
          legend: { show: false },
          padding: [8, 28, 0, 0], // Half a time below the axis is to the right of it.
          scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.15)] } },
          axes: [
            { ...axis, size: 28, space: 90, values: (_plot, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) },
            { ...axis, size: 46, values: (_plot, ticks) => ticks.map(short) },
          ],
          series: [
            {},
            ...series.map((one) => ({
              label: one.label,
              stroke: colour(one.colour),
              width: 2,
              fill: one.fill ? `${colour(one.colour)}1c` : undefined,
              points: { show: false },
            })),
          ],
        },
        data,
        element,
      );
    };
    make();
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: width(), height: HEIGHT }));
    sizes.observe(element);
    const themes = new MutationObserver(make);
    themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    return () => {
      sizes.disconnect();
      themes.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => {
    if (!plot.current || !data[0].length) return;
    const last = data[0].at(-1);
    plot.current.setData(data, false);
    plot.current.batch(() => {
      plot.current.setScale("x", { min: last - seconds, max: last });
      plot.current.setScale("y", { min: null, max: null });
    });
  });
  return html`<figure class="chart"><div ref=${box} role="img" aria-label=${label}></div>
    <figcaption>${series.map((one) => html`<span><i class=${`dot ${one.colour.slice(2)}`}></i>${one.label}</span>`)}</figcaption></figure>`;
}
