// On hover or focus, replace a static SVG by an interactive uPlot chart with values and zoom. Without scripts, the SVG
// remains. uplot.min.js and uplot.min.css are unmodified files of the npm package uPlot 1.6.32.
"use strict";
(() => {
  const formatNumber = (value) => String(Number(value.toPrecision(4)));
  const formatTime = (s) => {
    if (s > 0 && s < 1e-3) return formatNumber(s * 1e6) + " us";
    if (s < 0.1) return formatNumber(s * 1e3) + " ms";
    return s < 120 ? formatNumber(s) + " s" : s < 7200 ? formatNumber(s / 60) + " min" : formatNumber(s / 3600) + " h";
  };
  const units = {
    s: formatTime, "%": (y) => formatNumber(100 * y) + "%", GiB: (y) => formatNumber(y) + " GiB", "": formatNumber,
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // Draw hook for event markers, and for bands at the lower edge, which uPlot does not support itself.
  const drawOverlays = (data) => (u) => {
    const { ctx, bbox } = u, toPixel = (x) => u.valToPos(x, "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour("soft");
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    for (const [x] of data.marks) {
      ctx.moveTo(toPixel(x), bbox.top);
      ctx.lineTo(toPixel(x), bbox.top + bbox.height);
    }
    ctx.stroke();
    const bandHeight = 5 * devicePixelRatio;
    for (const [first, last, number] of data.bands) {
      ctx.fillStyle = colour("c" + number);
      ctx.fillRect(toPixel(first), bbox.top + bbox.height - bandHeight, toPixel(last) - toPixel(first), bandHeight);
    }
    ctx.restore();
  };

  const createChart = (figure, svg, data) => {
    const format = units[data.unit];
    const tables = data.lines.filter((line) => line.y.length).map((line) => {
      let x = 0;
      return [line.dx.map((dx) => (x += dx)), line.y];
    });
    const lines = data.lines.filter((line) => line.y.length);
    const last = () => Math.max(...tables.map(([xs]) => xs[xs.length - 1]));
    const axis = { stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: svg.clientWidth, height: svg.clientHeight,
      cursor: { drag: { x: true, y: false }, points: { size: 6 } },
      scales: {
        x: { time: false },
        y: { range: (u, low, high) => {
          const top = Math.min(high, data.top ?? Infinity), lifted = low > 0.6 * top;
          const bottom = lifted ? low - 0.25 * (top - low || top) : Math.min(0, low);
          return [bottom, top + 0.05 * (top - bottom || 1)];
        } },
      },
      axes: [{ ...axis, grid: { show: false }, size: 30 }, { ...axis, size: 62, values: (u, ticks) => ticks.map(format) }],
      series: [
        { label: data.x, value: (u, x) => (x == null ? "" : formatNumber(x)) },
        ...lines.map((line) => ({
          label: line.name, width: 1.8, spanGaps: true, points: { show: line.y.length < 2 },
          stroke: () => colour("c" + line.colour), dash: line.dashed ? [6, 4] : [],
          paths: data.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
          value: (u, y) => (y == null ? "" : format(y)),
        })),
      ],
      hooks: { draw: [drawOverlays(data)] },
    };
    const box = document.createElement("div");
    box.className = "live";
    svg.after(box);
    const chart = new uPlot(options, uPlot.join(tables), box);
    const setRange = (min, max) => chart.setScale("x", { min, max });
    figure.addEventListener("keydown", (event) => {
      if (event.target !== figure) return;
      const { min, max } = chart.scales.x, count = chart.data[0].length;
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key], zoom = { "+": 0.5, "-": 2 }[event.key];
      if (move) {
        const at = chart.cursor.idx ?? (move > 0 ? -1 : count);
        const x = chart.data[0][Math.min(Math.max(at + move, 0), count - 1)];
        chart.setCursor({ left: chart.valToPos(x, "x"), top: chart.over.clientHeight / 2 });
      } else if (zoom) {
        const centre = chart.cursor.idx == null ? (min + max) / 2 : chart.data[0][chart.cursor.idx], half = (zoom * (max - min)) / 2;
        setRange(Math.max(centre - half, chart.data[0][0]), Math.min(centre + half, last()));
      } else if (event.key === "Escape") {
        setRange(chart.data[0][0], last());
      } else return;
      event.preventDefault();
    });
    new ResizeObserver(() => {
      const width = Math.floor(box.clientWidth);
      if (width && width !== chart.width) chart.setSize({ width, height: chart.height });
    }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw());
  };

  const first = document.querySelector(".charts");
  const hint = document.createElement("p");
  hint.className = "soft";
  hint.textContent = "The pointer or the arrow keys show values. To zoom, drag, or press + and -; a double click or Escape shows all.";
  first?.before(hint);
  for (const figure of document.querySelectorAll("figure")) {
    const svg = figure.querySelector("svg.chart"), data = figure.querySelector("script");
    if (!svg || !data) continue;
    figure.tabIndex = 0;
    const activate = () => {
      figure.removeEventListener("pointerenter", activate);
      figure.removeEventListener("focus", activate);
      if (figure.querySelector(".live")) return;
      createChart(figure, svg, JSON.parse(data.textContent));
      svg.setAttribute("hidden", "");
      figure.querySelector(".legend").hidden = true;
    };
    figure.addEventListener("pointerenter", activate);
    figure.addEventListener("focus", activate);
  }
})();
