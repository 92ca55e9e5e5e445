// The 3-D replay: convex shapes on a 2-D canvas, painter's order, no library. Poses come packed
// (see replay.py): per frame, layer (robot, ghost) and moving body, 3 position and 4 quaternion
// values as 16-bit integers; a recording's keypoints, the standing feet's soles, a ball and its
// target as 3 values each.
(function () {
  "use strict";
  const root = document.getElementById("replay");
  const source = document.getElementById("replay-data");
  if (!root || !source) return;
  const scene = JSON.parse(source.textContent);
  if (!scene.clips.length) return;
  const $ = (name) => root.querySelector('[data-part="' + name + '"]');
  const canvas = $("canvas"), ctx = canvas.getContext("2d");
  const layer = document.createElement("canvas"), lctx = layer.getContext("2d");

  // ---- data -------------------------------------------------------------------------------------
  const VALUES = 7;
  function unpacked(packed) {
    const text = atob(packed), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return new Uint16Array(bytes.buffer);
  }
  function decode(clip) {
    if (clip.raw) return clip;
    clip.raw = unpacked(clip.poses);
    if (clip.points) clip.points = unpacked(clip.points);
    if (clip.feet) clip.feet = unpacked(clip.feet);
    if (clip.ball) clip.ball = unpacked(clip.ball);
    if (clip.ground) clip.ground.raw = unpacked(clip.ground.heights);
    clip.scale = clip.high.map((h, k) => (h - clip.low[k]) / 65535);
    clip.duration = (clip.frames - 1) / clip.fps;
    delete clip.poses;
    return clip;
  }
  // Poses of one layer at time t: linear between two frames, quaternions normalized.
  function poses(clip, which, t) {
    const f = Math.min(Math.max(t * clip.fps, 0), clip.frames - 1), f0 = Math.floor(f), w = f - f0;
    const f1 = Math.min(f0 + 1, clip.frames - 1), stride = scene.bodies * VALUES,
      out = new Array(scene.bodies);
    const a0 = (f0 * clip.layers + which) * stride, a1 = (f1 * clip.layers + which) * stride,
      raw = clip.raw;
    for (let b = 0; b < scene.bodies; b++) {
      const i = a0 + b * VALUES, j = a1 + b * VALUES, v = new Float64Array(VALUES);
      for (let k = 0; k < 3; k++)
        v[k] = clip.low[k] + clip.scale[k] * (raw[i + k] * (1 - w) + raw[j + k] * w);
      let n = 0;
      for (let k = 3; k < 7; k++) {
        v[k] = (raw[i + k] * (1 - w) + raw[j + k] * w) / 32767.5 - 1;
        n += v[k] * v[k];
      }
      n = 1 / Math.sqrt(n || 1);
      out[b] = { p: [v[0], v[1], v[2]], m: matrix(v[3] * n, v[4] * n, v[5] * n, v[6] * n) };
    }
    return out;
  }
  function rootAt(clip, which, frame) {
    const i = (frame * clip.layers + which) * scene.bodies * VALUES;
    return [0, 1, 2].map((k) => clip.low[k] + clip.scale[k] * clip.raw[i + k]);
  }

  // Height of the ground, which repeats itself: linear between the points around.
  function groundAt(clip, x, y) {
    const g = clip.ground;
    if (!g) return 0;
    const u = x / g.step, v = y / g.step, i = Math.floor(u), j = Math.floor(v), a = u - i,
      b = v - j, n = g.points;
    const at = (k, l) => g.raw[(((l % n) + n) % n) * n + ((k % n) + n) % n];
    const mean = (at(i, j) * (1 - a) + at(i + 1, j) * a) * (1 - b)
      + (at(i, j + 1) * (1 - a) + at(i + 1, j + 1) * a) * b;
    return g.low + (g.high - g.low) * mean / 65535;
  }

  // Places (points, feet) at time t: linear between two frames.
  function places(clip, raw, t) {
    const f = Math.min(Math.max(t * clip.fps, 0), clip.frames - 1), f0 = Math.floor(f), w = f - f0;
    const f1 = Math.min(f0 + 1, clip.frames - 1), n = raw.length / clip.frames, out = [];
    for (let i = 0; i < n; i += 3)
      out.push([0, 1, 2].map((k) => clip.low[k]
        + clip.scale[k] * (raw[f0 * n + i + k] * (1 - w) + raw[f1 * n + i + k] * w)));
    return out;
  }

  // ---- small vector algebra: matrices are 9 numbers, row by row ---------------------------------
  function matrix(w, x, y, z) {
    return [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)];
  }
  const times = (m, v) => [m[0] * v[0] + m[1] * v[1] + m[2] * v[2],
                           m[3] * v[0] + m[4] * v[1] + m[5] * v[2],
                           m[6] * v[0] + m[7] * v[1] + m[8] * v[2]];
  const add = (a, b, s) => [a[0] + b[0] * s, a[1] + b[1] * s, a[2] + b[2] * s];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
  const unit = (a) => {
    const n = Math.hypot(a[0], a[1], a[2]) || 1;
    return [a[0] / n, a[1] / n, a[2] / n];
  };

  // Corners and faces, in the shape's own frame, made once.
  const BOX = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]];
  for (const s of scene.shapes) {
    s.m = matrix(s.q[0], s.q[1], s.q[2], s.q[3]);
    if (s.t === "mesh") {
      // corners and faces come with the shape
    } else if (s.t === "box") {
      s.v = []; s.f = BOX;
      for (let i = 0; i < 8; i++)
        s.v.push([(i & 4 ? 1 : -1) * s.s[0], (i & 2 ? 1 : -1) * s.s[1], (i & 1 ? 1 : -1) * s.s[2]]);
    } else if (s.t === "cylinder") {
      const N = 18; s.v = []; s.f = [[], []];
      for (let i = 0; i < N; i++) {
        const c = Math.cos(2 * Math.PI * i / N) * s.s[0],
          d = Math.sin(2 * Math.PI * i / N) * s.s[0];
        s.v.push([c, d, -s.s[1]], [c, d, s.s[1]]);
        const j = (i + 1) % N;
        s.f.push([2 * i, 2 * j, 2 * j + 1, 2 * i + 1]);
        s.f[0].unshift(2 * i); s.f[1].push(2 * i + 1);
      }
    } else {
      s.v = s.t === "capsule" ? [[0, 0, -s.s[1]], [0, 0, s.s[1]]] : [[0, 0, 0]];
    }
    if (s.f) s.middle = [0, 1, 2].map((k) => s.v.reduce((sum, v) => sum + v[k], 0) / s.v.length);
    if (s.f) { // outward normals: faces are convex around the shape's centre
      s.n = s.f.map((f) => {
        const a = s.v[f[0]], u = add(s.v[f[1]], a, -1), w = add(s.v[f[2]], a, -1);
        const n = unit([
          u[1] * w[2] - u[2] * w[1], u[2] * w[0] - u[0] * w[2], u[0] * w[1] - u[1] * w[0]]);
        return dot(n, add(a, s.middle, -1)) < 0 ? n.map((c) => -c) : n;
      });
    }
  }

  // ---- state ------------------------------------------------------------------------------------
  // As near as shows the robot, and what was recorded beside it.
  const first = decode(scene.clips[0]), size = Math.max(1, rootAt(first, 0, 0)[2] / 0.55);
  const home = () => ({
    az: -1.05, el: 0.33, dist: (first.points ? 2.9 : 2.1) * size, pan: [0, 0, 0] });
  const view = { ...home(), target: null };
  const state = { clip: 0, t: 0, speed: 1, playing: false, follow: true, ghost: "over",
    recording: "both", dirty: true, last: 0 };
  let colours = {};
  function readColours() {
    const style = getComputedStyle(root), get = (name) => {
      const c = style.getPropertyValue(name).trim();
      return [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16));
    };
    colours = { base: get("--r-base"), link0: get("--r-link0"), link1: get("--r-link1"),
      link2: get("--r-link2"), ghost: get("--ref"), foot0: get("--lf"), foot1: get("--rf"),
      foot2: get("--lh"), foot3: get("--rh"), grid: get("--r-grid"), sky: get("--r-sky"),
      robot: get("--robot"), ref: get("--ref"), keypoint: get("--lf"), bone: get("--ref"),
      stance: get("--rf") };
  }
  const rgb = (c, f) => "rgb(" + c.map((v) => Math.round(Math.min(255, v * f))).join(",") + ")";
  const rgba = (c, a) => "rgba(" + c.join(",") + "," + a + ")";
  const LIGHT = unit([0.35, -0.5, 0.85]);

  // ---- camera -----------------------------------------------------------------------------------
  let cam = null, W = 0, H = 0, ratio = 1;
  function setCamera(focus) {
    const ce = Math.cos(view.el),
      back = [ce * Math.cos(view.az), ce * Math.sin(view.az), Math.sin(view.el)];
    const right = [-Math.sin(view.az), Math.cos(view.az), 0], eye = add(focus, back, view.dist);
    const up = [-Math.sin(view.el) * Math.cos(view.az), -Math.sin(view.el) * Math.sin(view.az), ce];
    cam = { eye, back, right, up, focal: Math.min(H * 1.35, W * 1.1) };
  }
  function project(p) {
    const d = add(p, cam.eye, -1), depth = -dot(d, cam.back);
    const k = cam.focal / Math.max(depth, 1e-3);
    return [W / 2 + k * dot(d, cam.right), H * 0.52 - k * dot(d, cam.up), depth, k];
  }
  const NEAR = 0.05;

  // ---- drawing ----------------------------------------------------------------------------------
  function polygon(c, points) {
    c.beginPath();
    points.forEach((p, i) => (i ? c.lineTo(p[0], p[1]) : c.moveTo(p[0], p[1])));
    c.closePath(); c.fill();
  }
  function pill(c, a, b, ra, rb) {
    const th = Math.atan2(b[1] - a[1], b[0] - a[0]);
    c.beginPath();
    c.arc(a[0], a[1], ra, th + Math.PI / 2, th + 3 * Math.PI / 2);
    c.arc(b[0], b[1], rb, th - Math.PI / 2, th + Math.PI / 2);
    c.closePath(); c.fill();
  }
  function place(body, s, shift) {
    const vertex = (v) => add(add(times(body.m, add(times(s.m, v), s.p, 1)), body.p, 1), shift, 1);
    return { s, body, points: s.v.map(vertex), centre: vertex([0, 0, 0]) };
  }
  function drawBody(c, list, tint) {
    for (const g of list) g.depth = -dot(add(g.centre, cam.eye, -1), cam.back);
    list.sort((a, b) => b.depth - a.depth);
    for (const g of list) {
      const s = g.s, colour = tint || colours[s.c] || colours.link1;
      if (g.depth < NEAR) continue;
      if (s.f) {
        const flat = g.points.map(project);
        s.f.forEach((face, i) => {
          const n = times(g.body.m, times(s.m, s.n[i]));
          if (dot(n, add(cam.eye, g.points[face[0]], -1)) <= 0) return;
          const fill =
            rgb(colour, 0.74 + 0.3 * Math.max(0, dot(n, LIGHT)) + 0.14 * Math.max(0, n[2]));
          c.fillStyle = fill; c.strokeStyle = fill; c.lineWidth = 0.7; c.lineJoin = "round";
          polygon(c, face.map((k) => flat[k])); c.stroke();
        });
        continue;
      }
      const a = project(g.points[0]), b = project(g.points[g.points.length - 1]);
      const ra = s.s[0] * a[3], rb = s.s[0] * b[3];
      let nx = 0, ny = -1;
      if (g.points.length > 1) {
        const len = Math.hypot(b[0] - a[0], b[1] - a[1]);
        if (len > 1e-6) { nx = -(b[1] - a[1]) / len; ny = (b[0] - a[0]) / len; }
      }
      let lit = dot([0, 1, 2].map((k) => nx * cam.right[k] - ny * cam.up[k]), LIGHT);
      if (lit < 0) { nx = -nx; ny = -ny; lit = -lit; }
      const r = Math.max(ra, rb), mx = (a[0] + b[0]) / 2, my = (a[1] + b[1]) / 2;
      const shade = c.createLinearGradient(mx + nx * r, my + ny * r, mx - nx * r, my - ny * r);
      shade.addColorStop(0, rgb(colour, 0.92 + 0.16 * lit));
      shade.addColorStop(0.3, rgb(colour, 1.02 + 0.08 * lit));
      shade.addColorStop(1, rgb(colour, 0.56));
      c.fillStyle = shade;
      pill(c, a, b, ra, rb);
    }
  }
  function drawShadow(c, list, clip) {
    const drop = (p) => {
      const h = 0.25 * (p[2] - groundAt(clip, p[0], p[1])), x = p[0] - LIGHT[0] * h,
        y = p[1] - LIGHT[1] * h;
      return project([x, y, groundAt(clip, x, y)]);
    };
    for (const g of list) {
      const flat = g.points.map(drop);
      if (flat.some((p) => p[2] < NEAR)) continue;
      if (g.s.f) polygon(c, hull(flat));
      else pill(c, flat[0], flat[flat.length - 1], g.s.s[0] * flat[0][3] * 0.8,
        g.s.s[0] * flat[flat.length - 1][3] * 0.8);
    }
  }
  function hull(points) {
    const p = points.slice().sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const half = (list) => {
      const out = [];
      for (const q of list) {
        while (out.length > 1) {
          const a = out[out.length - 2], b = out[out.length - 1];
          if ((b[0] - a[0]) * (q[1] - a[1]) - (b[1] - a[1]) * (q[0] - a[0]) > 0) break;
          out.pop();
        }
        out.push(q);
      }
      out.pop();
      return out;
    };
    return half(p).concat(half(p.reverse()));
  }
  function drawFloor(focus) {
    const R = Math.max(4, view.dist * 2.2), step = R > 12 ? 2 : R > 6 ? 1 : 0.5;
    const x0 = Math.round(focus[0] / step) * step, y0 = Math.round(focus[1] / step) * step,
      n = Math.ceil(R / step);
    const segment = (ax, ay, bx, by, strong) => {
      const far = Math.hypot((ax + bx) / 2 - focus[0], (ay + by) / 2 - focus[1]) / R;
      if (far > 1) return;
      const a = project([ax, ay, 0]), b = project([bx, by, 0]);
      if (a[2] < NEAR || b[2] < NEAR) return;
      ctx.strokeStyle =
        rgba(colours.grid, ((strong ? 0.85 : 0.4) * (1 - far) * (1 - far)).toFixed(3));
      ctx.beginPath(); ctx.moveTo(a[0], a[1]); ctx.lineTo(b[0], b[1]); ctx.stroke();
    };
    ctx.lineWidth = 1;
    for (let i = -n; i <= n; i++) {
      for (let j = -n; j < n; j++) {
        const x = x0 + i * step, y = y0 + j * step,
          strong = (v) => Math.abs(v / (2 * step) - Math.round(v / (2 * step))) < 1e-6;
        segment(x, y, x, y + step, strong(x));
        segment(x0 + j * step, y0 + i * step, x0 + (j + 1) * step, y0 + i * step,
          strong(y0 + i * step));
      }
    }
  }
  // Rough ground: its cells around, the farthest first.
  function drawGround(clip, focus) {
    const g = clip.ground, R = Math.min(3.5, view.dist * 1.6), n = Math.ceil(R / g.step),
      cells = [];
    const i0 = Math.round(focus[0] / g.step), j0 = Math.round(focus[1] / g.step);
    const corner = (i, j) => [i * g.step, j * g.step, groundAt(clip, i * g.step, j * g.step)];
    for (let i = i0 - n; i < i0 + n; i++) {
      for (let j = j0 - n; j < j0 + n; j++) {
        const far = Math.hypot((i + 0.5) * g.step - focus[0], (j + 0.5) * g.step - focus[1]) / R;
        if (far > 1) continue;
        const at = [corner(i, j), corner(i + 1, j), corner(i + 1, j + 1), corner(i, j + 1)],
          flat = at.map(project);
        if (flat.some((p) => p[2] < NEAR)) continue;
        const dx = (at[1][2] + at[2][2] - at[0][2] - at[3][2]) / 2,
          dy = (at[2][2] + at[3][2] - at[0][2] - at[1][2]) / 2;
        cells.push({ flat, depth: flat[0][2] + flat[2][2],
          light: dot(unit([-dx, -dy, g.step]), LIGHT), fade: far * far });
      }
    }
    cells.sort((a, b) => b.depth - a.depth);
    for (const cell of cells) {
      const shade = 0.72 + 0.3 * Math.max(0, cell.light);
      const fill = rgb(colours.sky.map((v, k) => v * cell.fade
        + (1 - cell.fade) * shade * (0.55 * v + 0.45 * colours.grid[k])), 1);
      ctx.fillStyle = ctx.strokeStyle = fill; ctx.lineWidth = 0.7;
      polygon(ctx, cell.flat); ctx.stroke();
    }
  }
  function drawTrail(clip, which, until, colour, alpha, shift) {
    const stride = Math.max(1, Math.floor(clip.frames / 400));
    ctx.strokeStyle = rgba(colour, alpha);
    ctx.lineWidth = 2;
    ctx.lineJoin = "round";
    ctx.beginPath();
    let on = false;
    for (let f = 0; f <= until; f += stride) {
      const p = rootAt(clip, which, f), x = p[0] + shift[0], y = p[1] + shift[1],
        q = project([x, y, groundAt(clip, x, y)]);
      if (q[2] < NEAR) { on = false; continue; }
      if (on) ctx.lineTo(q[0], q[1]); else ctx.moveTo(q[0], q[1]);
      on = true;
    }
    ctx.stroke();
  }
  function arrow(from, heading, v, colour, width) {
    const size = Math.hypot(v[0], v[1]);
    const c = Math.cos(heading), s = Math.sin(heading);
    const tip = [from[0] + c * v[0] - s * v[1], from[1] + s * v[0] + c * v[1], from[2]];
    const a = project(from), b = project(tip);
    if (a[2] < NEAR || b[2] < NEAR) return;
    ctx.strokeStyle = ctx.fillStyle = rgb(colour, 1); ctx.lineWidth = width; ctx.lineCap = "round";
    ctx.beginPath(); ctx.moveTo(a[0], a[1]); ctx.lineTo(b[0], b[1]); ctx.stroke();
    if (size > 0.05) {
      const th = Math.atan2(b[1] - a[1], b[0] - a[0]), k = 5 + width;
      polygon(ctx, [[b[0] + k * Math.cos(th), b[1] + k * Math.sin(th)],
                    [b[0] + k * Math.cos(th + 2.4), b[1] + k * Math.sin(th + 2.4)],
                    [b[0] + k * Math.cos(th - 2.4), b[1] + k * Math.sin(th - 2.4)]]);
    }
    // Yaw rate: an arc of the angle turned in one second, from the heading on.
    const yaw = v[2];
    if (Math.abs(yaw) > 0.03) {
      ctx.beginPath();
      for (let i = 0; i <= 16; i++) {
        const th = heading + yaw * i / 16,
          q = project([from[0] + 0.42 * Math.cos(th), from[1] + 0.42 * Math.sin(th), from[2]]);
        if (i) ctx.lineTo(q[0], q[1]); else ctx.moveTo(q[0], q[1]);
      }
      ctx.stroke();
    }
  }
  // The recording: a ball for each keypoint, a rod for each bone, as shapes of the world.
  const STILL = { p: [0, 0, 0], m: [1, 0, 0, 0, 1, 0, 0, 0, 1] };
  const ball = (at, radius) =>
    ({ s: { s: [radius], c: "keypoint" }, body: STILL, points: [at], centre: at });
  const rod = (a, b, radius) =>
    ({ s: { s: [radius], c: "bone" }, body: STILL, points: [a, b],
      centre: add(a, add(b, a, -1), 0.5) });
  function recorded(clip, t) {
    const on = places(clip, clip.points, t), tall = Math.max(...on.map((p) => p[2])),
      high = 1.6 * rootAt(clip, 0, 0)[2];
    const radius = 0.03 * Math.max(tall, 0.5 * high),
      far = 0.65 * high + 0.75 * Math.max(high, tall), az = home().az;
    // to the left, seen from home
    const away = [Math.sin(az) * far, -Math.cos(az) * far, 0],
      beside = on.map((p) => add(p, away, 1));
    return { on: on.map((p) => ball(p, 0.6 * radius)), away,
      beside: [...clip.bones.map(([i, j]) => rod(beside[i], beside[j], 0.4 * radius)),
        ...beside.map((p) => ball(p, radius))] };
  }
  // To the left of the way travelled.
  function sideways(clip, which, distance) {
    const a = rootAt(clip, which, 0), b = rootAt(clip, which, clip.frames - 1),
      far = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const robot = poses(clip, 0, 0)[0];
    const th = far > 0.3
      ? Math.atan2(b[1] - a[1], b[0] - a[0]) : Math.atan2(robot.m[3], robot.m[0]);
    return [-Math.sin(th) * distance, Math.cos(th) * distance, 0];
  }
  // A disc on the floor.
  function disc(at, radius) {
    const rim = [];
    for (let i = 0; i < 24; i++)
      rim.push(project([at[0] + radius * Math.cos(i * Math.PI / 12),
        at[1] + radius * Math.sin(i * Math.PI / 12), 0.003]));
    if (rim.every((p) => p[2] >= NEAR)) polygon(ctx, rim);
  }
  function drawStanding(clip, t) {
    const n = clip.feet.length / clip.frames / 3,
      frame = Math.min(Math.round(t * clip.fps), clip.frames - 1);
    ctx.fillStyle = rgba(colours.stance, 0.75);
    places(clip, clip.feet, t).forEach((at, foot) => {
      if (!clip.stands[frame * n + foot]) return;
      disc(at, clip.sole);
    });
  }
  function onLayer(alpha, paint) {
    lctx.setTransform(1, 0, 0, 1, 0, 0); lctx.clearRect(0, 0, layer.width, layer.height);
    lctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(lctx);
    ctx.globalAlpha = alpha; ctx.drawImage(layer, 0, 0, W, H); ctx.globalAlpha = 1;
  }
  function draw() {
    const clip = decode(scene.clips[state.clip]);
    const robot = poses(clip, 0, state.t),
      ghost = clip.layers > 1 && state.ghost !== "off" ? poses(clip, 1, state.t) : null;
    const frame = Math.min(Math.round(state.t * clip.fps), clip.frames - 1);
    const lost = clip.lost !== undefined && state.t >= clip.lost - 1e-9;
    const shift = ghost && state.ghost === "beside" ? sideways(clip, 1, 0.9) : [0, 0, 0];
    const film = clip.points && state.recording !== "off" ? recorded(clip, state.t) : null;
    const wide = film && state.recording !== "on" ? film.away : shift;
    const seen = state.follow ? robot[0].p : rootAt(clip, 0, 0);
    const want = [seen[0] + wide[0] / 2, seen[1] + wide[1] / 2,
      clip.ground ? seen[2] - 0.21 * size : 0.34 * size];
    view.target = want;
    const focus = add(want, view.pan, 1);
    setCamera(focus);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = rgb(colours.sky, 1); ctx.fillRect(0, 0, W, H);
    if (clip.ground) drawGround(clip, focus); else drawFloor(focus);
    if (clip.layers > 1) drawTrail(clip, 1, clip.frames - 1, colours.ref, 0.55, shift);
    drawTrail(clip, 0, frame, colours.robot, 0.9, [0, 0, 0]);
    if (clip.feet) drawStanding(clip, state.t);
    const parts = scene.shapes.map((s) => place(robot[s.b], s, [0, 0, 0]));
    if (clip.ball) {
      const middle = places(clip, clip.ball, state.t)[0],
        target = places(clip, clip.ball, frame / clip.fps)[1]; // it jumps
      ctx.fillStyle = rgba(colours.ref, 0.75); disc(target, clip.radius);
      parts.push(ball(middle, clip.radius));
    }
    const beside = film && state.recording !== "on" ? film.beside : [];
    onLayer(0.16, (c) => { c.fillStyle = "#000"; drawShadow(c, [...parts, ...beside], clip); });
    if (ghost)
      onLayer(0.42, (c) =>
        drawBody(c, scene.shapes.map((s) => place(ghost[s.b], s, shift)), colours.ghost));
    if (clip.velocity) {
      const v = clip.velocity.slice(frame * 6, frame * 6 + 6),
        heading = Math.atan2(robot[0].m[3], robot[0].m[0]);
      const from = [
        robot[0].p[0], robot[0].p[1], groundAt(clip, robot[0].p[0], robot[0].p[1]) + 0.01];
      arrow(from, heading, v.slice(0, 3), colours.ref, 6);
      arrow(from, heading, v.slice(3, 6), colours.robot, 3);
    }
    if (lost) onLayer(0.6, (c) => drawBody(c, parts, null));
    else drawBody(ctx, [...parts, ...beside], null);
    if (film && state.recording !== "beside") drawBody(ctx, film.on, null);
    hud(clip, robot, frame, lost);
  }
  const fixed = (v, n) => (v < 0 ? "−" : "") + Math.abs(v).toFixed(n);
  function hud(clip, robot, frame, lost) {
    let text = state.t.toFixed(2) + " / " + clip.duration.toFixed(2) + " s";
    if (clip.velocity) {
      const v = clip.velocity.slice(frame * 6, frame * 6 + 6).map((x) => fixed(x, 2));
      text += "  ·  forward " + v[3] + " of " + v[0] + " m/s  ·  lateral " + v[4] + " of " + v[1]
        + " m/s  ·  yaw " + v[5] + " of " + v[2] + " rad/s";
    } else if (clip.layers > 1) {
      const p = robot[0].p, g = poses(clip, 1, state.t)[0].p;
      text += "  ·  base deviation "
        + (100 * Math.hypot(p[0] - g[0], p[1] - g[1], p[2] - g[2])).toFixed(1) + " cm";
    }
    $("status").textContent = text;
    $("lost").hidden = !lost;
    const bar = $("scrub");
    bar.value = String(state.t);
    bar.style.setProperty("--done", (100 * state.t / (clip.duration || 1)).toFixed(2) + "%");
    document.dispatchEvent(new CustomEvent("replay-time",
      { detail: { clip: state.clip, t: state.t } }));
  }

  // ---- control ----------------------------------------------------------------------------------
  function resize() {
    const box = canvas.getBoundingClientRect();
    ratio = Math.min(window.devicePixelRatio || 1, 2);
    W = Math.max(box.width, 50); H = Math.max(box.height, 50);
    canvas.width = layer.width = Math.round(W * ratio);
    canvas.height = layer.height = Math.round(H * ratio);
    if (cam) draw(); // a resized canvas is empty: fill it before it is shown
    state.dirty = true;
  }
  function setPlaying(on) {
    state.playing = on;
    if (on && state.t >= scene.clips[state.clip].duration - 1e-6) state.t = 0;
    $("play").textContent = on ? "❚❚" : "▶";
    $("play").setAttribute("aria-label", on ? "pause" : "play");
    state.dirty = true;
  }
  function setClip(i, t) {
    const n = scene.clips.length;
    state.clip = ((i % n) + n) % n;
    const clip = decode(scene.clips[state.clip]);
    state.t = Math.min(Math.max(t || 0, 0), clip.duration);
    $("clip").value = String(state.clip);
    const bar = $("scrub");
    bar.max = String(clip.duration); bar.step = "any";
    bar.style.setProperty("--lost",
      clip.lost === undefined ? "100%" : (100 * clip.lost / (clip.duration || 1)).toFixed(2) + "%");
    $("ghost").disabled = clip.layers < 2;
    $("recording").disabled = !clip.points;
    state.dirty = true;
  }
  const seek = (t) => {
    state.t = Math.min(Math.max(t, 0), scene.clips[state.clip].duration);
    state.dirty = true;
  };
  function tick(now) {
    const clip = scene.clips[state.clip], passed = Math.min((now - state.last) / 1000, 0.1);
    state.last = now;
    if (state.playing) {
      state.t += passed * state.speed;
      if (state.t > clip.duration) state.t = 0;
    }
    if ((state.playing || state.dirty) && W > 0) { state.dirty = false; draw(); }
    requestAnimationFrame(tick);
  }
  function option(select, value, text) {
    const o = document.createElement("option");
    o.value = String(value); o.textContent = text; select.append(o);
  }
  scene.clips.forEach((c, i) => option($("clip"), i, c.name));
  $("clip").addEventListener("change", (e) => setClip(+e.target.value, 0));
  $("play").addEventListener("click", () => setPlaying(!state.playing));
  $("scrub").addEventListener("input", (e) => { setPlaying(false); seek(+e.target.value); });
  $("speed").addEventListener("change", (e) => { state.speed = +e.target.value; });
  $("ghost").addEventListener("change", (e) => {
    state.ghost = e.target.value;
    state.dirty = true;
  });
  $("recording").addEventListener("change", (e) => {
    state.recording = e.target.value;
    state.dirty = true;
  });
  $("follow").addEventListener("change", (e) => {
    state.follow = e.target.checked;
    view.pan = [0, 0, 0];
    state.dirty = true;
  });
  $("reset").addEventListener("click", () => { Object.assign(view, home()); state.dirty = true; });

  const zoom = (f) => {
    view.dist = Math.min(Math.max(view.dist * f, 0.7), 40);
    state.dirty = true;
  };
  const held = new Map();
  let pinch = 0;
  canvas.addEventListener("pointerdown", (e) => {
    held.set(e.pointerId, [e.clientX, e.clientY]);
    canvas.setPointerCapture(e.pointerId);
    pinch = 0;
  });
  canvas.addEventListener("pointermove", (e) => {
    const was = held.get(e.pointerId);
    if (!was) return;
    const dx = e.clientX - was[0], dy = e.clientY - was[1];
    held.set(e.pointerId, [e.clientX, e.clientY]);
    if (held.size > 1) {
      const [a, b] = [...held.values()], d = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (pinch) zoom(pinch / d);
      pinch = d;
    } else if (e.shiftKey || e.buttons === 2) {
      const k = view.dist / cam.focal;
      view.pan = add(add(view.pan, cam.right, -dx * k), cam.up, dy * k);
    } else {
      view.az -= dx * 0.008; view.el = Math.min(Math.max(view.el + dy * 0.006, 0.02), 1.55);
    }
    state.dirty = true;
  });
  for (const end of ["pointerup", "pointercancel"])
    canvas.addEventListener(end, (e) => { held.delete(e.pointerId); pinch = 0; });
  canvas.addEventListener("contextmenu", (e) => e.preventDefault());
  // The wheel scrolls the page until the replay has been clicked.
  canvas.addEventListener("wheel", (e) => {
    if (!(e.ctrlKey || e.metaKey || document.activeElement === canvas)) return;
    e.preventDefault(); zoom(Math.exp(e.deltaY * 0.0015));
  }, { passive: false });

  let visible = false;
  document.addEventListener("keydown", (e) => {
    const inside = root.contains(e.target), tag = e.target.tagName;
    if (!(inside || e.target === document.body) || !visible || tag === "SELECT" || e.altKey
      || e.ctrlKey || e.metaKey)
      return;
    if (tag === "BUTTON" && (e.key === " " || e.key === "Enter")) return;
    const clip = scene.clips[state.clip], step = e.shiftKey ? 1 : 1 / clip.fps;
    if (e.key === " ") setPlaying(!state.playing);
    else if (e.key === "ArrowLeft") { setPlaying(false); seek(state.t - step); }
    else if (e.key === "ArrowRight") { setPlaying(false); seek(state.t + step); }
    else if (e.key === "Home") seek(0);
    else if (e.key === "End") seek(clip.duration);
    else if (e.key === "+" || e.key === "=") zoom(0.85);
    else if (e.key === "-") zoom(1 / 0.85);
    else if (e.key === "[") setClip(state.clip - 1, 0);
    else if (e.key === "]") setClip(state.clip + 1, 0);
    else return;
    e.preventDefault();
  });
  document.addEventListener("replay-seek", (e) => {
    setPlaying(false);
    setClip(e.detail.clip, e.detail.t);
  });
  document.addEventListener("theme", () => { readColours(); state.dirty = true; });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    state.dirty = true;
  });
  addEventListener("beforeprint", () => { root.classList.add("printing"); readColours(); draw(); });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    readColours();
    state.dirty = true;
  });
  new ResizeObserver(resize).observe(canvas);

  // report.html#clip=2&t=3.5 opens at that moment, paused.
  const asked = new URLSearchParams(location.hash.slice(1)), linked = asked.has("clip");
  readColours();
  resize();
  setClip(parseInt(asked.get("clip"), 10) || 0, parseFloat(asked.get("t")) || 0);
  draw();
  let started = linked;
  new IntersectionObserver((entries) => {
    visible = entries[entries.length - 1].isIntersecting;
    if (visible && !started) {
      started = true;
      setPlaying(!matchMedia("(prefers-reduced-motion: reduce)").matches);
    }
  }, { threshold: 0.25 }).observe(canvas);
  root.classList.add("ready");
  requestAnimationFrame((now) => { state.last = now; tick(now); });
})();
