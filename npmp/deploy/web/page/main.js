// The page: loads what site.json names, runs the robot in real time, and shows how it does.

import loadMujoco from "./vendor/mujoco.js";
import * as ort from "./vendor/onnxruntime.js";
import { Chart } from "./chart.js";
import { Simulation } from "./simulation.js";
import { Steering } from "./steering.js";
import { View } from "./view.js";

const MOST_BEHIND_S = 0.25; // of what a slow machine owes, the rest is forgiven: it runs slower than real time
const BACK_AFTER_S = 1; // a robot that lies is put back after so long
const SHOVE = 0.45, SHOVE_S = 0.2; // of the button: share of its weight, how long

const $ = (id) => document.getElementById(id);
const at = (path) => new URL(path, import.meta.url).href;

let site, mujoco, view, chart, steering, simulation, ranges;
let paused = false, alone = 0, falls = 0, shove = 0;
let pull = () => {}; // lets a drag on the robot pull at it
let next = null; // what to do before the next step: nobody may change the robot while a step is under way
let clock = []; // [wall time, simulated time] of the last seconds, for the real-time factor

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

async function fetched(path, kind) {
  const answer = await fetch(at(path));
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${answer.statusText}`);
  return answer[kind]();
}

/** Remembers what was fetched or made for a key. */
function cached(make) {
  const known = new Map();
  return (key) => known.get(key) ?? known.set(key, make(key)).get(key);
}

const bundleOf = cached((name) => fetched(`policies/${name}/bundle.json`, "json"));
const looksOf = cached((robot) => fetched(`robots/${robot}/looks.json`, "json"));
const sceneOf = cached((path) => fetched(path, "text"));
const sessionOf = cached(async (name) =>
  ort.InferenceSession.create(new Uint8Array(await fetched(`policies/${name}/policy.onnx`, "arrayBuffer")), {
    executionProviders: ["wasm"],
  }),
);

/** A policy on a ground, from the home pose. */
async function open(name, ground) {
  const policy = site.policies.find((one) => one.name === name) ?? site.policies[0];
  const robot = site.robots[policy.robot];
  const kind = ground in robot.grounds ? ground : policy.ground;
  const [bundle, looks, session, xml] = await Promise.all([
    bundleOf(policy.name), looksOf(policy.robot), sessionOf(policy.name), sceneOf(`robots/${policy.robot}/${kind}.xml`),
  ]);
  simulation?.delete();
  simulation = new Simulation({ mujoco, ort, session, bundle, robot, xml, field: robot.grounds[kind] });
  simulation.name = policy.name;
  ranges = bundle.command_range;
  falls = 0;
  shove = 0;
  clock = [];
  steering.command = [0, 0, 0];
  chart.clear();
  view.weight = robot.weight;
  view.show(looks, simulation);
  $("policy").value = policy.name;
  $("ground").replaceChildren(...Object.keys(robot.grounds).map((one) => new Option(one, one, false, one === kind)));
  $("ground").value = kind;
  $("ground").parentElement.hidden = $("ground").options.length < 2;
  $("about").textContent = `Recordings: ${bundle.licence.join(", ") || "licence not said"}`;
  history.replaceState(null, "", `#${policy.name}${kind === policy.ground ? "" : `,${kind}`}`);
  tell();
}

/** So many physics steps, with the control steps that fall among them. */
async function advance(steps) {
  for (; steps > 0; steps--) {
    if (simulation.due === 0) {
      await simulation.control(steering.advance(simulation.period, ranges));
      chart.add(simulation.time, simulation.told, simulation.velocity);
    }
    simulation.step();
    if (shove > 0 && (shove -= simulation.dt) <= 0) simulation.push = null;
    if (simulation.broken || simulation.low > BACK_AFTER_S) putBack();
  }
}

function putBack() {
  falls += 1;
  const [x, y] = simulation.data.qpos;
  const yaw = simulation.yaw();
  simulation.push = null;
  if ([x, y, yaw].every(Number.isFinite)) simulation.place(x, y, yaw);
  else simulation.place();
}

/** Physics and policy in real time, apart from drawing: slow graphics do not slow the robot. */
async function live() {
  let last = performance.now(), owed = 0;
  for (;;) {
    if (next) {
      const todo = next;
      next = null;
      await todo();
      owed = 0;
    }
    const now = performance.now();
    owed = paused || alone || document.hidden ? 0 : Math.min(owed + (now - last) / 1000, MOST_BEHIND_S);
    last = now;
    const steps = Math.floor(owed / simulation.dt);
    owed -= steps * simulation.dt;
    await advance(steps);
    measure(now / 1000);
    await new Promise((done) => setTimeout(done, 4));
  }
}

let drawn = 0;

function frame(now) {
  const dt = (now - drawn) / 1000;
  drawn = now;
  requestAnimationFrame(frame);
  if (alone) return;
  pull();
  view.update(simulation, dt);
  view.render(dt);
  chart.draw(ranges);
  tell();
}

function measure(now) {
  clock.push([now, simulation.time]);
  while (clock.length > 2 && clock[0][0] < now - 2) clock.shift();
}

function realtime() {
  const [first, final] = [clock[0], clock.at(-1)];
  return clock.length > 1 && final[0] > first[0] ? (final[1] - first[1]) / (final[0] - first[0]) : 0;
}

function tell() {
  $("realtime").textContent = paused ? "paused" : `${realtime().toFixed(2)} × real time`;
  $("falls").textContent = falls === 1 ? "1 fall" : `${falls} falls`;
  $("pause").textContent = paused ? "Go on" : "Pause";
}

// --- what visitors do ---

function pushes(canvas) {
  let held = null; // {pointer, grip, x, y}
  const drag = () => {
    if (held.simulation !== simulation) return void (held = null); // another robot has come
    const from = view.worldPoint(held.grip);
    const to = view.across(held.x, held.y, from);
    if (to) simulation.push = { force: [0, 0, 0], ...simulation.push, ...held.grip, towards: to.toArray() };
  };
  canvas.addEventListener("pointerdown", (event) => {
    const grip = event.button === 0 && !held && simulation && view.pick(event.clientX, event.clientY);
    if (!grip) return;
    event.stopImmediatePropagation(); // the camera stays
    canvas.setPointerCapture(event.pointerId);
    held = { pointer: event.pointerId, simulation, grip, x: event.clientX, y: event.clientY };
    shove = 0;
    simulation.push = null;
    canvas.classList.add("pushing");
  }, true);
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId === held?.pointer) [held.x, held.y] = [event.clientX, event.clientY];
    else if (event.pointerType === "mouse" && !event.buttons && view.bodies)
      canvas.classList.toggle("grip", Boolean(view.pick(event.clientX, event.clientY)));
  });
  const release = (event) => {
    if (event.pointerId !== held?.pointer) return;
    held = null;
    simulation.push = null;
    canvas.classList.remove("pushing");
  };
  for (const kind of ["pointerup", "pointercancel", "lostpointercapture"]) canvas.addEventListener(kind, release);
  return () => held && drag();
}

/** A shove from one side or the other. */
function push() {
  const yaw = simulation.yaw(), side = Math.random() < 0.5 ? 1 : -1;
  const strength = side * SHOVE * simulation.robot.weight;
  const body = view.bodies[0].userData.body;
  simulation.push = { body, point: [0, 0, 0], force: [-Math.sin(yaw) * strength, Math.cos(yaw) * strength, 0] };
  shove = SHOVE_S;
}

function reset() {
  next = () => {
    simulation.push = null;
    simulation.place();
    falls = 0;
    steering.command = [0, 0, 0];
  };
}

function pause() {
  paused = !paused;
  clock = [];
  tell();
}

const SHORTCUTS = { KeyR: reset, KeyP: () => push(), Space: pause };

// --- for tests and the console ---

/**
 * So many control steps from the home pose by one command, as fast as it goes and the same every time.
 * Resolves to what each step was like: observation, action, qpos (after it), velocity; and whether it fell.
 */
async function run(steps, command) {
  alone += 1;
  await new Promise((done) => (next = done)); // what is under way is over
  const found = { observation: [], action: [], qpos: [], velocity: [], fell: false };
  try {
    simulation.push = null;
    simulation.place();
    for (let i = 0; i < steps && !found.fell; i++) {
      await simulation.control(command);
      for (let k = 0; k < simulation.substeps; k++) simulation.step();
      found.observation.push(Array.from(simulation.observation));
      found.action.push(Array.from(simulation.action));
      found.qpos.push(Array.from(simulation.data.qpos));
      found.velocity.push(simulation.velocity);
      found.fell = simulation.low > 0;
    }
  } finally {
    alone -= 1;
  }
  return found;
}

function state() {
  const { qpos } = simulation.data;
  return {
    policy: simulation.name, ground: $("ground").value, time: simulation.time, realtime: realtime(), falls,
    command: [...steering.command], velocity: [...simulation.velocity], position: Array.from(qpos.slice(0, 3)),
    upright: simulation.upright, push: simulation.push, effort: view.effort, paused,
  };
}

async function start() {
  ort.env.wasm.numThreads = 1; // more would need a page that is isolated from others
  ort.env.wasm.wasmPaths = { wasm: at("vendor/onnxruntime.wasm") };
  site = await fetched("site.json", "json");
  say(`Loading ${Math.round(site.loaded_bytes / 1e6)} MB …`);
  mujoco = await loadMujoco();
  view = new View($("view"));
  const figures = [...document.querySelectorAll("#rows li")].map((row) => [...row.querySelectorAll("b")]);
  chart = new Chart($("chart"), figures);
  steering = new Steering({ move: $("move"), turn: $("turn") });
  $("policy").replaceChildren(...site.policies.map((one) => new Option(one.name, one.name)));
  $("policy").parentElement.hidden = site.policies.length < 2;
  $("versions").textContent = ` · ${Object.entries(site.versions).map((pair) => pair.join(" ")).join(", ")}`;
  const [name, ground] = decodeURIComponent(location.hash.slice(1)).split(",");
  await open(name, ground);

  const change = (to, on) => (next = () => open(to, on));
  $("policy").addEventListener("change", (event) => change(event.target.value));
  $("ground").addEventListener("change", (event) => change(simulation.name, event.target.value));
  for (const id of ["policy", "ground"]) $(id).addEventListener("change", (event) => event.target.blur());
  addEventListener("hashchange", () => change(...decodeURIComponent(location.hash.slice(1)).split(",")));
  $("speed").addEventListener("input", (event) => (steering.speed = event.target.value / 100));
  $("speed").addEventListener("change", (event) => event.target.blur());
  steering.speed = $("speed").value / 100;
  for (const [id, act] of Object.entries({ reset, push, pause })) {
    $(id).addEventListener("click", (event) => {
      act();
      event.target.blur(); // else the space bar would press it again
    });
  }
  addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !(event.code in SHORTCUTS)) return;
    event.preventDefault();
    SHORTCUTS[event.code]();
  });
  pull = pushes($("view"));
  say("");
  requestAnimationFrame(frame);
  live().catch((error) => {
    say(`This stopped: ${error.message ?? error}`);
    console.error(error);
  });
}

window.npmp = { ready: start(), run, state, get simulation() { return simulation; } };
window.npmp.ready.catch((error) => {
  say(`This page cannot run here: ${error.message ?? error}`);
  console.error(error);
});
