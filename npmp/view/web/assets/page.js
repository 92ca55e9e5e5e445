// The page: loads the bundle, steers by keys, simulates in real time, draws with three.js.

import * as THREE from "three";
import { OrbitControls } from "./vendor/OrbitControls.js";
import loadMujoco from "./vendor/mujoco.js";
import * as ort from "./vendor/onnxruntime.js";
import { Simulation } from "./simulation.js";

const KEYS = { // by place on the keyboard: forward, left, turn
  KeyW: [1, 0, 0], ArrowUp: [1, 0, 0], KeyS: [-1, 0, 0], ArrowDown: [-1, 0, 0],
  KeyQ: [0, 1, 0], KeyE: [0, -1, 0],
  KeyA: [0, 0, 1], ArrowLeft: [0, 0, 1], KeyD: [0, 0, -1], ArrowRight: [0, 0, -1],
};
const MAX_LAG_S = 0.1; // a slower machine simulates slower than real time
const DOWN_S = 1; // a robot that has fallen for this time is reset
const GROUND_M = 40; // side of the drawn ground

const $ = (id) => document.getElementById(id);
const held = new Set();
let simulation, view, paused = false, resetDue = false, down = 0, time = 0, rate = 1;
let command = [0, 0, 0], advancing = Promise.resolve();

// --- steering

/** The command a control step later, on its way to that of the keys. */
function steer(dt) {
  const { contract, settings } = simulation;
  const share = [0, 0, 0];
  for (const code of held) KEYS[code].forEach((part, k) => { share[k] += part; });
  command = contract.commands.map(({ range: [low, high] }, k) => {
    const part = Math.max(-1, Math.min(1, share[k]));
    const goal = Math.max(low, Math.min(high, part > 0 ? part * high : -part * low));
    const change = settings.command_rate[k] * dt;
    return command[k] + Math.max(-change, Math.min(change, goal - command[k]));
  });
}

function listen() {
  const key = (event) => {
    if (event.code === "KeyR") resetDue = true; // a control step may be under way
    if (event.type === "keyup") held.delete(event.code);
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.code in KEYS)) return;
    event.preventDefault(); // arrows would scroll
    if (event.type === "keydown") held.add(event.code);
  };
  addEventListener("keydown", key);
  addEventListener("keyup", key);
  addEventListener("blur", () => held.clear());
  for (const button of document.querySelectorAll("[data-key]")) {
    button.onpointerdown = () => held.add(button.dataset.key);
    button.onpointerup = button.onpointerleave = () => held.delete(button.dataset.key);
  }
}

// --- time

function reset() {
  simulation.reset();
  command = [0, 0, 0];
  down = 0;
  resetDue = false;
}

async function advance(steps) {
  for (; steps > 0; steps--) {
    if (simulation.untilControl === 0) steer(simulation.period);
    await simulation.step(command);
    time += simulation.dt;
    down = simulation.fallen ? down + simulation.dt : 0;
    if (resetDue || down > DOWN_S) reset();
  }
}

let last = performance.now(), lag = 0;
async function frame(now) {
  const passed = (now - last) / 1000, before = time;
  last = now;
  lag = Math.min(lag + passed, MAX_LAG_S);
  if (!paused) {
    const steps = Math.floor(lag / simulation.dt);
    lag -= steps * simulation.dt;
    await (advancing = advance(steps));
    rate += Math.min(1, passed) * ((time - before) / (passed || 1) - rate);
    view.draw(simulation, passed);
    show();
  }
  requestAnimationFrame((next) => frame(next).catch(stop));
}

function show() {
  const axes = [["forward", "m/s"], ["left", "m/s"], ["turn", "rad/s"]].map(([name, unit], k) =>
    `${name} ${simulation.velocity[k].toFixed(2)} of ${command[k].toFixed(2)} ${unit}`);
  $("state").textContent = [...axes, `real time × ${rate.toFixed(2)}`].join(" · ");
}

// --- drawing

function geometry({ t: kind, s: size, v: corners, f: faces }) {
  if (kind === "box") return new THREE.BoxGeometry(...size.map((half) => 2 * half));
  if (kind === "sphere") return new THREE.SphereGeometry(size[0], 24, 16);
  if (kind === "capsule")
    return new THREE.CapsuleGeometry(size[0], 2 * size[1], 6, 16).rotateX(Math.PI / 2);
  if (kind === "cylinder")
    return new THREE.CylinderGeometry(size[0], size[0], 2 * size[1], 24).rotateX(Math.PI / 2);
  const hull = new THREE.BufferGeometry().setFromPoints(
    faces.flat().map((corner) => new THREE.Vector3(...corners[corner])));
  hull.computeVertexNormals();
  return hull;
}

/** Lines on the ground, half a metre apart. */
function tiles() {
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = canvas.height = 128;
  context.fillStyle = "#d9dee2";
  context.fillRect(0, 0, 128, 128);
  context.fillStyle = "#aeb6bd";
  context.fillRect(0, 0, 128, 2);
  context.fillRect(0, 0, 2, 128);
  const texture = new THREE.CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = THREE.RepeatWrapping;
  texture.repeat.set(2 * GROUND_M, 2 * GROUND_M);
  Object.assign(texture, { colorSpace: THREE.SRGBColorSpace, anisotropy: 8 });
  return texture;
}

class View {
  constructor(canvas, { bodies, shapes, colours, home_qpos: home }) {
    this.renderer = new THREE.WebGLRenderer({ canvas, antialias: true });
    this.renderer.shadowMap.enabled = true;
    this.scene = new THREE.Scene();
    this.scene.background = new THREE.Color("#e8ebee");
    this.scene.fog = new THREE.Fog("#e8ebee", 6, GROUND_M / 2);
    this.camera = new THREE.PerspectiveCamera(38, 1, 0.05, GROUND_M);
    this.camera.up.set(0, 0, 1);
    this.camera.position.set(-3 * home[2], -4.2 * home[2], 2.4 * home[2]);
    this.controls = new OrbitControls(this.camera, canvas);
    Object.assign(this.controls, { enablePan: false, maxPolarAngle: 1.5, maxDistance: 12 });
    this.controls.target.set(0, 0, 0.7 * home[2]);
    this.sun = new THREE.DirectionalLight("#ffffff", 2.2);
    this.sun.castShadow = true;
    const reach = 2.2 * home[2];
    Object.assign(this.sun.shadow.camera,
      { left: -reach, right: reach, top: reach, bottom: -reach, near: 0.1, far: 12 });
    this.ground = new THREE.Mesh(new THREE.PlaneGeometry(GROUND_M, GROUND_M),
      new THREE.MeshLambertMaterial({ map: tiles() }));
    this.ground.receiveShadow = true;
    this.scene.add(this.sun, this.sun.target, this.ground,
      new THREE.HemisphereLight("#ffffff", "#9a9a9a", 1.9));
    this.bodies = bodies;
    this.groups = bodies.map(() => this.scene.add(new THREE.Group()).children.at(-1));
    for (const shape of shapes) {
      const material = new THREE.MeshLambertMaterial({ color: colours[shape.c] });
      const mesh = new THREE.Mesh(geometry(shape), material);
      const [w, x, y, z] = shape.q;
      mesh.position.set(...shape.p);
      mesh.quaternion.set(x, y, z, w);
      mesh.castShadow = mesh.receiveShadow = true;
      this.groups[shape.b].add(mesh);
    }
  }

  /** The robot now; the camera follows it. */
  draw({ mujoco, model, data }, dt) {
    mujoco.mj_kinematics(model, data); // mj_step leaves the poses before the step
    const { xpos, xquat } = data;
    this.groups.forEach((group, i) => {
      const at = 3 * this.bodies[i], [w, x, y, z] = xquat.slice(4 * this.bodies[i]);
      group.position.set(xpos[at], xpos[at + 1], xpos[at + 2]);
      group.quaternion.set(x, y, z, w);
    });
    const root = this.groups[0].position, target = this.controls.target;
    const move = new THREE.Vector3(root.x, root.y, target.z).sub(target);
    move.multiplyScalar(1 - Math.exp(-6 * dt));
    target.add(move);
    this.camera.position.add(move);
    this.ground.position.set(Math.round(root.x), Math.round(root.y), 0);
    this.sun.target.position.copy(root);
    this.sun.position.copy(root).add(new THREE.Vector3(1.5, -1.8, 4));
    const { clientWidth: width, clientHeight: height } = this.renderer.domElement;
    const size = this.renderer.getSize(new THREE.Vector2());
    if (size.x !== width || size.y !== height) {
      this.renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
      this.renderer.setSize(width, height, false);
      this.camera.aspect = width / height;
      this.camera.fov = width < height ? 60 : 38;
      this.camera.updateProjectionMatrix();
    }
    this.controls.update();
    this.renderer.render(this.scene, this.camera);
  }
}

// --- start, and what tests call

/** Control steps from the home pose with a constant command, not in real time. */
async function run(steps, constant) {
  paused = true;
  await advancing;
  reset();
  const result = { observation: [], action: [], qpos: [] };
  for (let i = 0; i < steps; i++) {
    for (let k = 0; k < simulation.substeps; k++) await simulation.step(constant);
    const values = { ...simulation, qpos: simulation.data.qpos };
    for (const name in result) result[name].push(Array.from(values[name]));
  }
  reset();
  paused = false;
  return result;
}

const state = () => ({ time, rate, command, velocity: simulation.velocity, up: simulation.up,
  qpos: Array.from(simulation.data.qpos) });

function stop(error) {
  $("message").textContent = `stopped: ${error.message ?? error}`;
  $("message").hidden = false;
  console.error(error);
}

async function load(name, kind) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response[kind]();
}

async function start() {
  ort.env.wasm.numThreads = 1; // more need a page isolated by its server's headers
  ort.env.wasm.wasmPaths = { wasm: new URL("vendor/onnxruntime.wasm", import.meta.url).href };
  const [mujoco, contract, settings, xml, graph] = await Promise.all([loadMujoco(),
    load("bundle.json", "json"), load("page.json", "json"), load("robot.xml", "text"),
    load("policy.onnx", "arrayBuffer")]);
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  simulation = new Simulation({ mujoco, ort, session, xml, contract, settings });
  view = new View($("view"), settings);
  document.title = $("policy").textContent = settings.policy;
  listen();
  $("message").hidden = true;
  requestAnimationFrame((now) => frame(now).catch(stop));
}

window.npmp = { ready: start(), run, state };
window.npmp.ready.catch(stop);
