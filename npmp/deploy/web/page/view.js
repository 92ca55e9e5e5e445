// What is seen: the robot, the ground, the arrow of a push. Drawn with three.js, Z up, metres.

import * as THREE from "three";
import { OrbitControls } from "./vendor/OrbitControls.js";

const LINE_M = 1; // between the ground's lines
const EXTENT_M = 60; // of flat ground
const SLOW_S = 0.045; // frames that take longer are drawn with less effort
const EFFORTS = [[2, true], [1, true], [1, false], [0.7, false], [0.5, false]]; // [most pixels per CSS pixel, shadows]
const JUDGED_S = 0.7; // how often that is looked at

/** A shape of looks.json. */
function geometry({ t: kind, s: size, v: corners, f: faces }) {
  if (kind === "box") return new THREE.BoxGeometry(2 * size[0], 2 * size[1], 2 * size[2]);
  if (kind === "sphere") return new THREE.SphereGeometry(size[0], 24, 16);
  if (kind === "capsule") return new THREE.CapsuleGeometry(size[0], 2 * size[1], 6, 16).rotateX(Math.PI / 2);
  if (kind === "cylinder") return new THREE.CylinderGeometry(size[0], size[0], 2 * size[1], 24).rotateX(Math.PI / 2);
  const hull = new THREE.BufferGeometry();
  hull.setAttribute("position", new THREE.Float32BufferAttribute(faces.flat().flatMap((v) => corners[v]), 3));
  hull.computeVertexNormals();
  return hull;
}

/** Lines in both directions, one square of them. */
function squared(colour, line) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 256;
  const context = canvas.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 256, 256);
  context.fillStyle = line;
  context.fillRect(0, 0, 256, 3);
  context.fillRect(0, 0, 3, 256);
  const texture = new THREE.CanvasTexture(canvas);
  texture.wrapS = texture.wrapT = THREE.RepeatWrapping;
  texture.colorSpace = THREE.SRGBColorSpace;
  texture.anisotropy = 8;
  return texture;
}

/** One period of rough ground, its corner at the origin. */
function tile(ground) {
  const { period, cell, corner } = ground.field;
  const cells = Math.round(period / cell), across = cells + 1;
  const positions = [], uv = [], index = [];
  for (let j = 0; j <= cells; j++)
    for (let i = 0; i <= cells; i++) {
      positions.push(i * cell, j * cell, ground.at(corner[0] + i * cell, corner[1] + j * cell));
      uv.push((i * cell) / LINE_M, (j * cell) / LINE_M);
      const k = j * across + i;
      // split as MuJoCo splits: from this corner to the one over there
      if (i < cells && j < cells) index.push(k, k + 1, k + across + 1, k, k + across + 1, k + across);
    }
  const made = new THREE.BufferGeometry();
  made.setAttribute("position", new THREE.Float32BufferAttribute(positions, 3));
  made.setAttribute("uv", new THREE.Float32BufferAttribute(uv, 2));
  made.setIndex(index);
  made.computeVertexNormals();
  return made;
}

/** Whether the processor draws, not a graphics card. */
function inSoftware() {
  const gl = document.createElement("canvas").getContext("webgl2");
  const name = gl?.getExtension("WEBGL_debug_renderer_info") && gl.getParameter(0x9246); // UNMASKED_RENDERER_WEBGL
  gl?.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|software/i.test(name ?? "");
}

export class View {
  /** Raises an error where the browser has no WebGL. */
  constructor(canvas) {
    this.canvas = canvas;
    const slow = inSoftware();
    this.effort = slow ? 3 : 0;
    this.renderer = new THREE.WebGLRenderer({ canvas, antialias: !slow });
    this.renderer.shadowMap.type = THREE.PCFShadowMap;
    this.scene = new THREE.Scene();
    this.camera = new THREE.PerspectiveCamera(38, 1, 0.05, 80);
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, canvas);
    Object.assign(this.controls, { enablePan: false, maxPolarAngle: 0.49 * Math.PI, minDistance: 0.4, maxDistance: 12 });
    this.robot = new THREE.Group();
    this.floor = new THREE.Group();
    this.sun = new THREE.DirectionalLight(0xffffff, 2.2);
    this.sun.shadow.mapSize.set(1024, 1024);
    this.sun.shadow.normalBias = 0.02;
    this.sky = new THREE.HemisphereLight(0xffffff, 0x9a9a9a, 1.9);
    this.scene.add(this.robot, this.floor, this.sun, this.sun.target, this.sky, this.makeArrow(), this.makeBlob());
    this.times = [];
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.paint());
    this.paint();
    new ResizeObserver(() => (this.stale = true)).observe(canvas);
    this.resize();
  }

  paint() {
    const [sky, earth, line] = this.dark.matches ? ["#14171b", "#262b31", "#3a414a"] : ["#dfe5ea", "#cfd6dc", "#b4bdc6"];
    this.scene.background = new THREE.Color(sky);
    this.scene.fog = new THREE.Fog(sky, 6, 22);
    this.texture?.dispose();
    this.texture = squared(earth, line);
    for (const mesh of this.floor.children) mesh.material.map = this.texture;
  }

  resize() {
    this.stale = false;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const [pixels, shadows] = EFFORTS[this.effort];
    this.renderer.setPixelRatio(Math.min(window.devicePixelRatio || 1, pixels));
    this.renderer.setSize(width, height, false);
    this.sun.castShadow = shadows;
    this.renderer.shadowMap.enabled = shadows;
    this.blob.visible = this.flat && !shadows;
    this.camera.aspect = width / height;
    this.camera.fov = width < height ? 46 : 38;
    this.camera.updateProjectionMatrix();
  }

  /** Another robot on another ground. */
  show(looks, simulation) {
    for (const group of [this.robot, this.floor])
      for (const child of [...group.children]) {
        child.traverse((part) => part.geometry?.dispose());
        group.remove(child);
      }
    this.bodies = looks.bodies.map((body) => {
      const group = new THREE.Group();
      group.userData.body = body;
      this.robot.add(group);
      return group;
    });
    const materials = new Map();
    for (const shape of looks.shapes) {
      if (!materials.has(shape.rgb)) materials.set(shape.rgb, new THREE.MeshLambertMaterial({ color: shape.rgb }));
      const mesh = new THREE.Mesh(geometry(shape), materials.get(shape.rgb));
      mesh.position.set(...shape.p);
      const [w, x, y, z] = shape.q;
      mesh.quaternion.set(x, y, z, w);
      mesh.castShadow = mesh.receiveShadow = true;
      this.bodies[shape.b].add(mesh);
    }
    this.tall = simulation.robot.home_qpos[2];
    this.lay(simulation.ground);
    this.shifted = [...simulation.shifted];
    this.update(simulation);
    const { x, y } = this.bodies[0].position;
    this.controls.target.set(x, y, 0.7 * this.tall);
    this.resize();
    const far = this.tall * Math.max(1, 0.8 / this.camera.aspect); // the robot has room on a phone held upright, too
    this.camera.position.set(x - 3.0 * far, y - 4.2 * far, 2.4 * far);
    const reach = 2.2 * this.tall;
    Object.assign(this.sun.shadow.camera, { left: -reach, right: reach, top: reach, bottom: -reach, near: 0.1, far: 12 });
    this.sun.shadow.camera.updateProjectionMatrix();
  }

  lay(ground) {
    const material = new THREE.MeshLambertMaterial({ map: this.texture });
    if (ground.field) {
      const { period, corner } = ground.field;
      const shared = tile(ground);
      for (const i of [-1, 0, 1])
        for (const j of [-1, 0, 1]) {
          const mesh = new THREE.Mesh(shared, material);
          mesh.position.set(corner[0] + i * period, corner[1] + j * period, 0);
          this.floor.add(mesh);
        }
    } else {
      const plane = new THREE.PlaneGeometry(EXTENT_M, EXTENT_M);
      const uv = plane.attributes.uv;
      for (let i = 0; i < uv.count; i++) uv.setXY(i, (uv.getX(i) * EXTENT_M) / LINE_M, (uv.getY(i) * EXTENT_M) / LINE_M);
      this.floor.add(new THREE.Mesh(plane, material));
    }
    for (const mesh of this.floor.children) mesh.receiveShadow = true;
    this.flat = !ground.field;
    this.blob.scale.set(1.2 * this.tall, 0.75 * this.tall, 1);
  }

  /** What stands for the shadow where shadows take too long. */
  makeBlob() {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 64;
    const context = canvas.getContext("2d");
    const fade = context.createRadialGradient(32, 32, 4, 32, 32, 32);
    fade.addColorStop(0, "rgb(0 0 0 / 40%)");
    fade.addColorStop(1, "rgb(0 0 0 / 0%)");
    context.fillStyle = fade;
    context.fillRect(0, 0, 64, 64);
    const material = new THREE.MeshBasicMaterial({ map: new THREE.CanvasTexture(canvas), transparent: true, depthWrite: false });
    this.blob = new THREE.Mesh(new THREE.CircleGeometry(1, 32), material);
    return this.blob;
  }

  /** Bodies as they are now; the camera goes with them. dt: since the last frame [s]. */
  update(simulation, dt = 0) {
    const { mujoco, model, data } = simulation;
    mujoco.mj_kinematics(model, data); // a step leaves the poses of its beginning
    const { xpos, xquat } = data;
    for (const group of this.bodies) {
      const { body } = group.userData;
      group.position.set(xpos[3 * body], xpos[3 * body + 1], xpos[3 * body + 2]);
      group.quaternion.set(xquat[4 * body + 1], xquat[4 * body + 2], xquat[4 * body + 3], xquat[4 * body]);
    }
    const root = this.bodies[0].position, target = this.controls.target;
    const [sx, sy] = [0, 1].map((k) => simulation.shifted[k] - this.shifted[k]); // with the ground: not seen
    this.shifted = [...simulation.shifted];
    const part = 1 - Math.exp(-6 * dt);
    const height = 0.7 * this.tall + simulation.ground.at(root.x, root.y);
    const way = new THREE.Vector3(root.x - sx, root.y - sy, height).sub(target).multiplyScalar(part);
    way.x += sx;
    way.y += sy;
    target.add(way);
    this.camera.position.add(way);
    if (this.flat) for (const mesh of this.floor.children) mesh.position.set(Math.round(root.x / LINE_M) * LINE_M, Math.round(root.y / LINE_M) * LINE_M, 0);
    this.blob.position.set(root.x, root.y, 0.002);
    this.blob.rotation.z = simulation.yaw();
    this.sun.target.position.copy(root);
    this.sun.position.copy(root).add(new THREE.Vector3(1.5, -1.8, 4));
    this.drawArrow(simulation.push);
  }

  render(dt) {
    if (this.stale) this.resize(); // right before drawing: it empties the canvas
    this.controls.update();
    this.renderer.render(this.scene, this.camera);
    this.watch(dt);
  }

  /** Draw with less effort where frames take long. */
  watch(dt) {
    if (dt > 5) this.times = []; // the page was hidden
    else this.times.push(dt);
    const sum = this.times.reduce((all, time) => all + time, 0), mean = sum / this.times.length;
    if (this.times.length < 3 || sum < JUDGED_S) return;
    this.times = [];
    if (mean > SLOW_S && this.effort < EFFORTS.length - 1) {
      this.effort += 1;
      this.stale = true;
    }
  }

  // --- pushes ---

  ray(x, y) {
    const box = this.canvas.getBoundingClientRect();
    const at = new THREE.Vector2((2 * (x - box.left)) / box.width - 1, 1 - (2 * (y - box.top)) / box.height);
    const caster = new THREE.Raycaster();
    caster.setFromCamera(at, this.camera);
    return caster;
  }

  /** What of the robot is at a place of the window: {body, point: in its frame}, or null. */
  pick(x, y) {
    const [hit] = this.ray(x, y).intersectObjects(this.bodies, true);
    if (!hit) return null;
    const group = hit.object.parent;
    return { body: group.userData.body, point: group.worldToLocal(hit.point.clone()).toArray() };
  }

  /** Where the window's place lies in the plane through a point that faces the camera. */
  across(x, y, through) {
    const plane = new THREE.Plane().setFromNormalAndCoplanarPoint(this.camera.getWorldDirection(new THREE.Vector3()), through);
    return this.ray(x, y).ray.intersectPlane(plane, new THREE.Vector3());
  }

  /** Where a point of a body is in the world. */
  worldPoint({ body, point }) {
    const group = this.bodies.find((one) => one.userData.body === body);
    group.updateMatrixWorld();
    return group.localToWorld(new THREE.Vector3(...point));
  }

  makeArrow() {
    const material = new THREE.MeshBasicMaterial({ color: 0xff7a00, depthTest: false, transparent: true });
    this.shaft = new THREE.Mesh(new THREE.CylinderGeometry(0.03, 0.03, 1, 12).translate(0, 0.5, 0), material);
    this.tip = new THREE.Mesh(new THREE.ConeGeometry(0.09, 0.22, 16).translate(0, 0.11, 0), material);
    this.arrow = new THREE.Group().add(this.shaft, this.tip);
    this.arrow.renderOrder = 1;
    this.arrow.visible = false;
    return this.arrow;
  }

  /** Its length is the force: the robot's height for the robot's weight. */
  drawArrow(push) {
    this.arrow.visible = Boolean(push);
    if (!push) return;
    const force = new THREE.Vector3(...push.force);
    const length = (1.4 * this.tall * force.length()) / this.weight;
    this.arrow.visible = length > 0.02 * this.tall;
    if (!this.arrow.visible) return;
    this.arrow.position.copy(this.worldPoint(push));
    this.arrow.quaternion.setFromUnitVectors(new THREE.Vector3(0, 1, 0), force.normalize());
    const thick = 1.2 * this.tall, head = Math.min(0.22 * thick, 0.6 * length);
    this.shaft.scale.set(thick, length - head, thick);
    this.tip.position.y = length - head;
    this.tip.scale.set(thick, head / 0.22, thick);
  }
}
