// The page's own behaviour: theme, hover read-outs of the charts, and the charts' link to the
// replay.
(function () {
  "use strict";
  const html = document.documentElement;
  const button = document.getElementById("theme");
  button.addEventListener("click", () => {
    const dark = html.dataset.theme
      ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    html.dataset.theme = dark ? "light" : "dark";
    document.dispatchEvent(new CustomEvent("theme"));
  });
  addEventListener("beforeprint",
    () => document.querySelectorAll("details:not(.screen)").forEach((d) => {
      d.dataset.was = d.open ? "1" : "";
      d.open = true;
    }));
  addEventListener("afterprint",
    () => document.querySelectorAll("details:not(.screen)").forEach((d) => {
      d.open = d.dataset.was === "1";
    }));

  const tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; document.body.append(tip);
  const NS = "http://" + "www.w3.org/2000/svg"; // the name of SVG, not an address that is fetched
  const text = (v) => {
    const a = Math.abs(v);
    return a !== 0 && (a < 1e-3 || a >= 1e6) ? v.toExponential(2) : String(+v.toPrecision(4));
  };
  function prepare(svg) {
    if (svg.ready) return svg.ready;
    const nums = (name) => svg.dataset[name].split(" ").map(Number);
    const [left, top, width, height] = nums("box"), x = nums("x"), y = nums("y"),
      log = svg.dataset.log === "1";
    const lines = [...svg.querySelectorAll("g.line")].map((line) => {
      const drawn = line.querySelector("path"), points = drawn
        ? [...drawn.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)]
          .map((m) => [+m[1], +m[2]])
        : [];
      return {
        name: line.dataset.name, css: line.getAttribute("class").replace("line ", ""), points };
    });
    const cross = document.createElementNS(NS, "path");
    cross.setAttribute("class", "cross"); svg.append(cross);
    const toX = (px) => x[0] + (px - left) / width * (x[1] - x[0]);
    const toY = (py) => {
      const p = 1 - (py - top) / height;
      return log ? y[0] * Math.pow(y[1] / y[0], p) : y[0] + p * (y[1] - y[0]);
    };
    return (svg.ready = { left, top, width, height, x, lines, cross, toX, toY });
  }
  function inside(svg, event) {
    const p = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse()), s = prepare(svg);
    return Math.min(Math.max(p.x, s.left), s.left + s.width);
  }
  document.querySelectorAll("svg.plot").forEach((svg) => {
    svg.addEventListener("pointermove", (event) => {
      const s = prepare(svg), px = inside(svg, event);
      s.cross.setAttribute("d", "M" + px.toFixed(1) + " " + s.top + "v" + s.height);
      tip.replaceChildren();
      const head = document.createElement("b");
      head.textContent = svg.dataset.xlabel + " " + text(s.toX(px));
      tip.append(head);
      for (const line of s.lines) {
        let best = null, near = 12;
        for (const q of line.points) {
          const d = Math.abs(q[0] - px);
          if (d < near) { near = d; best = q; }
        }
        if (!best) continue;
        const row = document.createElement("div"), swatch = document.createElement("i");
        swatch.className = "swatch " + line.css;
        row.append(swatch,
          line.name + "  " + text(s.toY(best[1])) + " " + svg.dataset.unit.replace(/[()]/g, ""));
        tip.append(row);
      }
      tip.hidden = false;
      const w = tip.offsetWidth,
        x = event.clientX + 14 + w > innerWidth ? event.clientX - w - 10 : event.clientX + 14;
      tip.style.transform = "translate(" + Math.max(x, 4) + "px," + (event.clientY + 14) + "px)";
    });
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      prepare(svg).cross.setAttribute("d", "");
    });
    if (svg.dataset.clip === undefined) return;
    svg.addEventListener("click", (event) => {
      const s = prepare(svg);
      document.dispatchEvent(new CustomEvent("replay-seek",
        { detail: { clip: +svg.dataset.clip, t: s.toX(inside(svg, event)) } }));
    });
  });

  // The replay's moment, drawn in every chart of its clip.
  let marked = [];
  document.addEventListener("replay-time", (event) => {
    const { clip, t } = event.detail;
    marked.forEach((m) => m.setAttribute("d", ""));
    marked = [];
    document.querySelectorAll('svg.plot[data-clip="' + clip + '"]').forEach((svg) => {
      if (!svg.checkVisibility || svg.checkVisibility()) {
        const s = prepare(svg), part = (t - s.x[0]) / (s.x[1] - s.x[0]);
        if (!svg.now) {
          svg.now = document.createElementNS(NS, "path");
          svg.now.setAttribute("class", "now");
          svg.append(svg.now);
        }
        if (part >= 0 && part <= 1)
          svg.now.setAttribute("d",
            "M" + (s.left + part * s.width).toFixed(1) + " " + s.top + "v" + s.height);
        marked.push(svg.now);
      }
    });
  });
})();
