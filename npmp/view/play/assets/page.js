"use strict";
// The page around viser's view: reads keys, gamepad and sticks, says what is wished, shows what is
// told.
const $ = (id) => document.getElementById(id);
const KEYS = { // by place on the keyboard: forward, left, turn
  KeyW: [1, 0, 0], ArrowUp: [1, 0, 0], KeyS: [-1, 0, 0], ArrowDown: [-1, 0, 0],
  KeyQ: [0, 1, 0], KeyE: [0, -1, 0],
  KeyA: [0, 0, 1], ArrowLeft: [0, 0, 1], KeyD: [0, 0, -1], ArrowRight: [0, 0, -1],
};
const DEAD = 0.1, AGAIN_MS = 100, SHOWN_S = 10;
let socket = null, me = null, hello = null, state = null, samples = [], controls = null;

// --- the line to the server

function say(what) { if (socket && socket.readyState === 1) socket.send(JSON.stringify(what)); }

function open() {
  const place = new URL("steer", location.href);
  place.protocol = place.protocol.replace("http", "ws");
  socket = new WebSocket(place);
  socket.onmessage = (event) => {
    const told = JSON.parse(event.data);
    ({ hello: greet, state: show, controls: arrange, refused: refuse })[told.type](told);
  };
  socket.onclose = () => {
    me = null;
    held.clear();
    sent = [0, 0, 0];
    $("state").textContent = "no connection; trying again";
    $("state").className = "bad";
    setTimeout(open, 1000);
  };
}

function greet(told) {
  hello = told; me = told.you; samples = [];
  $("robot").textContent = told.robot;
  $("view").src =
    `view/${told.view}?initialCameraPosition=-1.9,-1.7,1.2&initialCameraLookAt=0,0,0.35`;
  fill($("modes"), told.modes.map((name) => button(name, () => say({ do: "mode", name }))));
  for (const [id, names] of [["terrain", told.grounds], ["randomization", told.randomizations]])
    fill($(id), names.map((name) => new Option(name.replace("_", " "), name)));
  fill($("speed"), told.speeds.map(
    (value) => new Option(`${value} ×`, value, value === 1, value === 1)));
}

function refuse(told) { notice(told.why); }

let noticed = 0;
function notice(text) {
  noticed = performance.now();
  $("busy").textContent = text;
  $("busy").hidden = false;
}

function show(told) {
  state = told;
  samples.push(...told.samples);
  while (samples.length && samples[0][0] < told.time_s - SHOWN_S) samples.shift();
  if (samples.length > 1 && samples[samples.length - 1][0] < samples[0][0]) samples = [];
  const mine = told.steering === me;
  const who = mine ? "you steer" : `viewer ${told.steering} steers`;
  const others = told.viewers > 1 ? `, ${told.viewers} viewers` : "";
  const slow = told.speed < 1 ? ` of ${told.speed}` : "";
  const doing = told.paused ? "paused" : told.down ? "fallen"
    : `real time × ${told.real_time_factor.toFixed(2)}${slow}`;
  $("state").textContent = `${told.mode} · ${doing} · ${told.falls} falls · ${who}${others}`;
  $("state").className = told.down ? "bad" : "";
  $("take").hidden = mine;
  $("eye").hidden = !told.eye;
  for (const box of document.querySelectorAll("fieldset")) box.disabled = !mine;
  for (const b of $("modes").children) {
    b.setAttribute("aria-pressed", b.value === told.mode);
    b.disabled = !mine;
  }
  $("pause").textContent = told.paused ? "Go on" : "Pause";
  $("speed").value = told.speed;
  if (told.note) notice(told.note);
  else if (told.busy) notice(told.busy);
  else if (performance.now() - noticed > 3000 || $("busy").textContent.startsWith("opening"))
    $("busy").hidden = true;
}

let drawn = null;
function drawCameraImage() {
  requestAnimationFrame(drawCameraImage);
  const rows = state && state.eye;
  if (!rows || drawn === rows) return;
  drawn = rows;
  const canvas = $("eye").firstElementChild, width = rows[0].length, height = rows.length;
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const picture = new ImageData(width, height);
  rows.flat().forEach((grey, i) => picture.data.set([grey, grey, grey, 255], 4 * i));
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(picture, 0, 0);
}

// --- settings

function button(name, act) {
  const made = document.createElement("button");
  made.textContent = made.value = name;
  made.onclick = () => { act(); made.blur(); };
  return made;
}

function element(tag, text) {
  const part = document.createElement(tag);
  part.textContent = text;
  return part;
}

function fill(parent, children) { parent.replaceChildren(...children); }

function arrange(told) {
  const same = controls && JSON.stringify(controls.clips) === JSON.stringify(told.clips);
  controls = told;
  document.querySelectorAll(".rough").forEach((row) => { row.hidden = !told.rough; });
  $("eye").lastElementChild.textContent = told.caption;
  fill($("keys"), told.keys.flatMap(([key, act]) => [element("dt", key), element("dd", act)]));
  $("sticks").className = told.steers ? "on" : "";
  for (const key of ["terrain", "randomization"]) $(key).value = told.world[key];
  if (document.activeElement !== $("level")) $("level").value = told.world.level;
  $("level").nextElementSibling.textContent = Number(told.world.level.toFixed(2));
  $("own").hidden = !told.clips.length;
  if (!same) fill($("clip"), told.clips.map((name) => new Option(name, name)));
  if (told.clip !== null) $("clip").value = told.clip;
}

for (const key of ["terrain", "randomization"])
  $(key).addEventListener("change", (event) => say({ do: "world", [key]: event.target.value }));
$("level").addEventListener("change",
  (event) => say({ do: "world", level: Number(event.target.value) }));
$("clip").addEventListener("change", (event) => say({ do: "clip", value: event.target.value }));
$("pause").onclick = () => say({ do: "pause", value: !state.paused });
$("step").onclick = () => say({ do: "step" });
$("reset").onclick = () => say({ do: "reset" });
$("speed").onchange = (event) => say({ do: "speed", value: Number(event.target.value) });
$("take").onclick = () => say({ do: "take" });
$("more").onclick = () =>
  $("more").setAttribute("aria-expanded", $("panel").classList.toggle("open"));

// --- steering: keys, gamepad and sticks add up; said again while anything is held, and one zero
// when it is let go

const held = new Set();
let slower = false, sent = [0, 0, 0], saidAt = 0;
const sticks = { left: [0, 0], right: [0, 0] };

function typing(target) {
  return target instanceof Element && target.closest("input[type=text], textarea") !== null;
}

function down(event) {
  slower = event.shiftKey;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { KeyP: "pause", KeyN: "step", KeyR: "reset" }[event.code];
  if (!(event.code in KEYS) && !act) return;
  if (event.target.closest && event.target.closest("select, input")
    && event.code.startsWith("Arrow")) return; // theirs
  event.preventDefault();
  event.stopImmediatePropagation(); // viser moves its camera by the same keys
  if (act && !event.repeat) $(act).click();
  if (!act && !event.repeat && controls && !controls.steers)
    notice(`${controls.mode} takes no velocity; its keys are in the list "Keys"`);
  if (event.code in KEYS) { held.add(event.code); steer(); }
}

function up(event) {
  slower = event.shiftKey;
  if (held.delete(event.code)) { event.preventDefault(); event.stopImmediatePropagation(); }
  steer();
}

function letGo() { held.clear(); slower = false; steer(); }

function listen(window) {
  window.addEventListener("keydown", down, true);
  window.addEventListener("keyup", up, true);
  window.addEventListener("blur", () => setTimeout(() => {
    if (!document.hasFocus()) letGo();
  }), true);
}
listen(window);
document.addEventListener("visibilitychange", () => { if (document.hidden) letGo(); });
$("view").addEventListener("load", () => listen($("view").contentWindow));

function pad() {
  const live = (v) => (Math.abs(v) < DEAD ? 0 : Math.sign(v) * (Math.abs(v) - DEAD) / (1 - DEAD));
  for (const found of navigator.getGamepads ? navigator.getGamepads() : []) {
    if (found && found.connected && found.axes.length >= 2)
      return [-live(found.axes[1]), -live(found.axes[0]), -live(found.axes[2] || 0)];
  }
  return [0, 0, 0];
}

function steer() {
  const wanted = pad();
  for (const code of held)
    KEYS[code].forEach((share, i) => { wanted[i] += share * (slower ? 0.5 : 1); });
  wanted[0] -= sticks.left[1]; wanted[1] -= sticks.left[0]; wanted[2] -= sticks.right[0];
  const axes = wanted.map((v) => Math.round(1000 * Math.max(-1, Math.min(1, v))) / 1000 + 0);
  const still = axes.every((v) => v === 0), now = performance.now();
  const changed = axes.some((v, i) => v !== sent[i]);
  if (state && state.steering === me && (changed || (!still && now - saidAt >= AGAIN_MS))) {
    say({ do: "steer", axes });
    saidAt = now;
    sent = axes;
  }
}
setInterval(steer, 33);

for (const side of ["left", "right"]) {
  const stick = $(side), knob = stick.firstElementChild;
  const move = (event) => {
    const box = stick.getBoundingClientRect(), reach = 0.4 * box.width;
    let x = (event.clientX - box.left - box.width / 2) / reach,
      y = side === "right" ? 0 : (event.clientY - box.top - box.height / 2) / reach;
    const far = Math.max(1, Math.hypot(x, y));
    x /= far; y /= far;
    knob.style.transform = `translate(${x * reach}px, ${y * reach}px)`;
    sticks[side] = [x, y].map((v) => (Math.abs(v) < DEAD ? 0 : v));
    steer();
  };
  const free = () => { sticks[side] = [0, 0]; knob.style.transform = ""; steer(); };
  stick.addEventListener("pointerdown", (event) => {
    stick.setPointerCapture(event.pointerId);
    move(event);
  });
  stick.addEventListener("pointermove", (event) => {
    if (stick.hasPointerCapture(event.pointerId)) move(event);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
    stick.addEventListener(end, free);
}

// --- the plot: what was asked for and achieved, over the last ten seconds

function plot() {
  requestAnimationFrame(plot);
  const canvas = $("plot");
  if (!canvas.offsetParent || !state || plot.at === state.time_s) return;
  plot.at = state.time_s;
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = 210;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const draw = canvas.getContext("2d"), colour = getComputedStyle(document.body);
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.font = "11px system-ui, sans-serif";
  ["forward m/s", "left m/s", "turn rad/s"].forEach((name, k) => {
    const top = 70 * k + 14, tall = 52, most = Math.max(
      0.5, ...samples.map((s) => Math.max(Math.abs(s[1 + k]), Math.abs(s[4 + k] || 0))));
    const y = (v) => top + tall * (0.5 - 0.5 * v / most),
      x = (t) => width * (1 - (state.time_s - t) / SHOWN_S);
    draw.strokeStyle = colour.getPropertyValue("--line"); draw.lineWidth = 1;
    draw.beginPath(); draw.moveTo(0, y(0)); draw.lineTo(width, y(0)); draw.stroke();
    draw.fillStyle = colour.getPropertyValue("--soft");
    draw.fillText(name, 0, top - 3);
    const last = samples[samples.length - 1];
    if (last) {
      draw.textAlign = "right";
      draw.fillText(`${last[1 + k].toFixed(2)}${
        last[4 + k] === null ? "" : ` of ${last[4 + k].toFixed(2)}`}`, width, top - 3);
      draw.textAlign = "left";
    }
    for (const [column, name] of [[4 + k, "--asked"], [1 + k, "--done"]]) {
      draw.strokeStyle = colour.getPropertyValue(name); draw.lineWidth = 1.5;
      draw.beginPath();
      let begun = false;
      for (const s of samples) {
        if (s[column] === null) { begun = false; continue; }
        draw[begun ? "lineTo" : "moveTo"](x(s[0]), y(s[column]));
        begun = true;
      }
      draw.stroke();
    }
  });
}
open();
drawCameraImage();
plot();
