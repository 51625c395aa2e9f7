"use strict";
// Draws the ops on a canvas that can be zoomed; without this script the page shows them unzoomed.
(() => {
  addEventListener("beforeprint", () => {
    for (const more of document.querySelectorAll("details")) more.open = true;
  });
  const source = document.getElementById("ops-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const zoom = document.querySelector(".zoom");
  const canvas = zoom.querySelector("canvas");
  const tip = zoom.querySelector(".tip");
  const range = document.getElementById("range");
  const ROW = 26, HEAD = 20, LEAST_US = 50;
  let from = 0, to = data.width_us, drag = null, colours = {};

  const time = (us) => {
    const ms = us / 1000;
    if (Math.abs(ms) < 10) return ms.toFixed(2) + " ms";
    if (Math.abs(ms) < 1000) return ms.toFixed(0) + " ms";
    return (ms / 1000).toFixed(ms < 10000 ? 3 : 2) + " s";
  };
  const value = (name, element) => getComputedStyle(element || document.body).getPropertyValue(name).trim();
  const pick = () => {
    const probe = document.createElement("i");
    document.body.append(probe);
    colours = { rows: [], ink: value("--ink"), dim: value("--dim"), grid: value("--grid"), bad: value("--bad"), card: value("--card") };
    for (const stage of data.stages) {
      probe.className = "c" + (stage % 8);
      colours.rows.push(value("--stage", probe));
    }
    probe.remove();
  };
  const labelWidth = () => (canvas.clientWidth < 620 ? 0 : 200);
  const x = (us) => labelWidth() + (us - from) / (to - from) * (canvas.clientWidth - labelWidth());
  const us = (px) => from + (px - labelWidth()) / (canvas.clientWidth - labelWidth()) * (to - from);
  const step = (least) => {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
  };

  function ruler(pen, height) {
    const width = canvas.clientWidth, every = step((to - from) / Math.max(2, (width - labelWidth()) / 110));
    pen.fillStyle = colours.dim;
    pen.textAlign = "left";
    for (let at = Math.ceil((from + data.zero_us) / every) * every; at <= to + data.zero_us; at += every) {
      const px = Math.round(x(at - data.zero_us)) + .5;
      pen.strokeStyle = colours.grid;
      pen.beginPath(); pen.moveTo(px, HEAD); pen.lineTo(px, height); pen.stroke();
      if (px < width - 50) pen.fillText(time(at), px + 3, 12);
    }
  }

  function draw() {
    const width = canvas.clientWidth, narrow = labelWidth() === 0, rowHeight = narrow ? ROW + 12 : ROW;
    const height = HEAD + rowHeight * data.labels.length, scale = devicePixelRatio || 1;
    canvas.width = width * scale; canvas.height = height * scale;
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11.5px system-ui, sans-serif";
    ruler(pen, height);
    const top = (row) => HEAD + row * rowHeight + (narrow ? 15 : 4);
    pen.save();
    pen.beginPath(); pen.rect(labelWidth(), 0, width - labelWidth(), height); pen.clip();
    for (const [row, name, start, took, , ok] of data.ops) {
      if (start > to || start + took < from) continue;
      const left = x(start), wide = Math.max(1, x(start + took) - left - .5);
      pen.fillStyle = ok ? colours.rows[row] : colours.bad;
      pen.fillRect(left, top(row), wide, ROW - 8);
      if (!ok) { pen.strokeStyle = colours.ink; pen.strokeRect(left, top(row), wide, ROW - 8); }
      if (wide > 70) {
        pen.fillStyle = colours.card;
        pen.fillText(data.names[name], Math.max(left, labelWidth()) + 5, top(row) + 13, wide - 8);
      }
    }
    pen.restore();
    data.labels.forEach((label, row) => {
      const base = HEAD + row * rowHeight + (narrow ? 11 : 17);
      pen.fillStyle = colours.rows[row];
      pen.fillRect(0, base - 8, 9, 9);
      pen.fillStyle = colours.ink;
      pen.fillText(label, 15, base, (narrow ? width : labelWidth()) - 20);
    });
    range.textContent = time(from + data.zero_us) + " to " + time(to + data.zero_us) + " after the start, " + data.ops.length + " ops";
  }

  function show(a, b) {
    const wide = Math.min(data.width_us, Math.max(LEAST_US, b - a));
    from = Math.min(Math.max(0, a), data.width_us - wide);
    to = from + wide;
    draw();
  }
  const by = (factor, at) => show(at - (at - from) * factor, at + (to - at) * factor);
  const middle = () => (from + to) / 2;

  function at(event) {
    const box = canvas.getBoundingClientRect(), rowHeight = labelWidth() ? ROW : ROW + 12;
    const px = event.clientX - box.left, row = Math.floor((event.clientY - box.top - HEAD) / rowHeight);
    const near = 2 * (to - from) / canvas.clientWidth, when = us(px);
    return [px, event.clientY - box.top, data.ops.find((op) => op[0] === row && op[2] - near <= when && when <= op[2] + op[3] + near)];
  }
  function point(event) {
    if (drag) {
      const moved = (event.clientX - drag.x) / (canvas.clientWidth - labelWidth()) * (drag.to - drag.from);
      show(drag.from - moved, drag.to - moved);
      return;
    }
    const [px, py, op] = at(event);
    tip.hidden = !op;
    if (!op) return;
    const rows = op[4] ? "\n" + op[4] + (op[4] === 1 ? " row" : " rows") : "";
    tip.textContent = data.names[op[1]] + (op[5] ? "" : " (failed)") + "\n" + data.labels[op[0]] + "\n" + time(op[3]) + ", at " + time(op[2] + data.zero_us) + rows;
    tip.style.left = Math.max(0, Math.min(px + 12, canvas.clientWidth - 220)) + "px";
    tip.style.top = canvas.offsetTop + py + 14 + "px";
  }

  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, from, to };
    canvas.setPointerCapture(event.pointerId);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { drag = null; });
  canvas.addEventListener("dblclick", (event) => by(.4, us(at(event)[0])));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    by(event.deltaY > 0 ? 1.25 : .8, us(at(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const some = (to - from) / 5;
    const acts = { "+": () => by(.6, middle()), "-": () => by(1.6, middle()), ArrowLeft: () => show(from - some, to - some), ArrowRight: () => show(from + some, to + some), Home: () => show(0, data.width_us) };
    if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
  });
  zoom.querySelector(".tools").addEventListener("click", (event) => {
    const what = event.target.dataset.do;
    if (what === "in") by(.5, middle());
    if (what === "out") by(2, middle());
    if (what === "all") show(0, data.width_us);
  });
  if (data.left_out) document.getElementById("left-out").textContent = " " + data.left_out + " ops in the middle of the run are not drawn here.";
  document.querySelector(".still").hidden = true;
  zoom.hidden = false;
  pick(); draw();
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { pick(); draw(); });
})();
