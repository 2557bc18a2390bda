// Draws a gate's history: lag, rate and batch time, with marks for events.
"use strict";

(() => {
  const place = document.getElementById("charts");
  const list = document.getElementById("marks");
  if (!place || !window.uPlot) return;
  const address = place.dataset.series;
  const colours = { failed: "--bad", action: "--busy", restart: "--watch" };
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200].concat([1, 2, 7, 14, 28, 56, 112, 364, 1820].map((days) => days * 86400));
  const plots = [];
  let data = null;
  let asking = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => value === null ? "—" : Math.abs(value) >= 10000 ?
    new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value) :
    String(Math.round(value * 100) / 100);

  const pad = (number) => String(number).padStart(2, "0");
  const clock = (then) => pad(then.getHours()) + ":" + pad(then.getMinutes()) + ":" + pad(then.getSeconds());
  const day = (then) => then.getFullYear() + "-" + pad(then.getMonth() + 1) + "-" + pad(then.getDate());

  // Times on a 24-hour clock, with the date where it changes.
  function times(_plot, splits, _axis, _space, step) {
    let before = "";
    return splits.map((split) => {
      const then = new Date(split * 1000);
      const words = step < 86400 ? [clock(then)] : [];
      if (day(then) !== before) words.push(day(then));
      before = day(then);
      return words.join("\n");
    });
  }

  // A dragged range is a page with its own address, so that operators can send a link to it.
  function zoom(plot) {
    if (plot.select.width < 5) return;
    const at = new URL(location.href);
    const ms = (left) => String(Math.round(plot.posToVal(left, "x") * 1000));
    at.searchParams.set("from", ms(plot.select.left));
    at.searchParams.set("until", ms(plot.select.left + plot.select.width));
    location.assign(at);
  }

  function lines(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const mark of data.marks) {
      const x = plot.valToPos(mark.time, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = colour(colours[mark.kind]);
      ctx.globalAlpha = 0.6;
      ctx.setLineDash([4, 3]);
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function options(element, series) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: Math.max(element.clientWidth, 200),
      height: 190,
      cursor: { sync: { key: "gate" }, drag: { x: true, y: false, setScale: false } },
      scales: {
        x: { time: true, range: () => [data.since_ms / 1000, data.until_ms / 1000] },
        y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      axes: [{ ...axis, space: 80, incrs: STEPS, values: times }, { ...axis, size: 58, values: (_plot, values) => values.map(short) }],
      series: [{ value: (_plot, time) => time === null ? "—" : day(new Date(time * 1000)) + " " + clock(new Date(time * 1000)) }, ...series.map(([label, name, extra]) => ({
        label, stroke: colour(name), width: 1.5, spanGaps: true, points: { show: data.time.length < 3 },
        value: (_plot, value) => short(value), ...extra,
      }))],
      hooks: { draw: [lines], setSelect: [zoom] },
    };
  }

  const columns = {
    lag: () => [data.time, data.lag],
    rate: () => [data.time, data.rate, data.capacity],
    batch: () => [data.time, data.batch, data.time.map(() => data.interval_ms / 1000)],
  };
  const series = {
    lag: [["lag", "--accent", {}]],
    rate: [["rate", "--accent", {}], ["processed", "--good", { dash: [2, 3] }]],
    batch: [["batch", "--accent", {}], ["interval", "--soft", { dash: [6, 4] }]],
  };

  function draw() {
    for (const plot of plots.splice(0)) plot.destroy();
    for (const element of place.querySelectorAll("[data-chart]")) {
      element.textContent = "";
      const which = element.dataset.chart;
      const plot = new uPlot(options(element, series[which]), columns[which](), element);
      plot.which = which;
      plots.push(plot);
    }
    marks();
  }

  function marks() {
    document.getElementById("up-to").hidden = data.is_now || address.includes("from=") || !data.time.length;
    list.textContent = "";
    for (const mark of [...data.marks].reverse()) {
      const item = document.createElement("li");
      item.className = "mark-" + mark.kind;
      const word = document.createElement("b");
      word.textContent = mark.text;
      item.append(clock(new Date(mark.time * 1000)) + " ", word);
      list.append(item);
    }
  }

  function join(more) {
    const from = more.time.length ? more.time[0] : Infinity;
    const keep = data.time.findIndex((time) => time >= from);
    const end = keep < 0 ? data.time.length : keep;
    const start = Math.max(data.time.findIndex((time) => time >= more.since_ms / 1000), 0);
    for (const name of ["time", "lag", "rate", "capacity", "batch"]) {
      data[name] = data[name].slice(start, end).concat(more[name]);
    }
    data.marks = data.marks.filter((mark) => mark.time < from && mark.time >= more.since_ms / 1000).concat(more.marks);
    Object.assign(data, { since_ms: more.since_ms, until_ms: more.until_ms, is_now: more.is_now, interval_ms: more.interval_ms });
  }

  async function refresh() {
    if (asking) return;
    asking = true;
    try {
      const last = data && data.time.length > 1 ? Math.floor(data.time[data.time.length - 2] * 1000) : 0;
      const answer = await fetch(address + (last ? "&after=" + last : ""));
      if (!answer.ok) return;
      const found = await answer.json();
      if (last) {
        join(found);
        for (const plot of plots) plot.setData(columns[plot.which]());
        marks();
      } else {
        data = found;
        draw();
      }
    } catch {
      // The ledger or the dashboard is unreachable, which the page shows; the next batch retries.
    } finally {
      asking = false;
    }
  }

  document.getElementById("newest").addEventListener("changed", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && data) { width = innerWidth; draw(); }
  });
  refresh();
})();
