// A robot in MuJoCo under its policy, step by step as npmp/deploy/trial.py runs it in Python.

const GRAVITY = 9.81; // [m/s2] per g
const UPRIGHT = Math.cos(Math.PI / 4); // of the vertical in the root frame; below it has fallen
const PULL_REACH = 1.4;
const MOST_PULL = 0.8; // of the robot's weight
const LOW = 0.5; // of the root's height at home; below it has fallen, too

// --- quaternions (w, x, y, z) and vectors, as MuJoCo has them ---

/** The vector in the world of one in the frame of quat; with `back` the other way. */
export function turned(quat, vector, back = false) {
  const [w, x, y, z] = back ? [quat[0], -quat[1], -quat[2], -quat[3]] : quat;
  const [a, b, c] = vector;
  const tx = 2 * (y * c - z * b), ty = 2 * (z * a - x * c), tz = 2 * (x * b - y * a);
  return [a + w * tx + y * tz - z * ty, b + w * ty + z * tx - x * tz, c + w * tz + x * ty - y * tx];
}

/** mju_subQuat: the rotation vector, in the frame of `from`, that leads there from `to`. */
function difference(to, from) {
  const [aw, ax, ay, az] = [from[0], -from[1], -from[2], -from[3]];
  const [bw, bx, by, bz] = to;
  const axis = [
    aw * bx + ax * bw + ay * bz - az * by,
    aw * by - ax * bz + ay * bw + az * bx,
    aw * bz + ax * by - ay * bx + az * bw,
  ];
  const sine = Math.hypot(...axis);
  let angle = 2 * Math.atan2(sine, aw * bw - ax * bx - ay * by - az * bz);
  if (angle > Math.PI) angle -= 2 * Math.PI;
  return sine < 1e-15 ? [0, 0, 0] : axis.map((part) => (part * angle) / sine);
}

function cross(a, b) {
  return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
}

// --- the ground ---

/** Heights of a scene's floor: of its height field, which repeats itself, or nothing. */
export class Ground {
  constructor(model, field) {
    this.field = field; // what site.json says of it, null for flat ground
    if (!field) return;
    const [halfX, halfY, top] = model.hfield_size;
    this.rows = model.hfield_nrow[0];
    this.columns = model.hfield_ncol[0];
    const floor = [...model.geom_type].indexOf(1); // mjGEOM_HFIELD
    const low = model.geom_pos[3 * floor + 2];
    this.heights = Float32Array.from(model.hfield_data, (share) => low + share * top);
    this.half = [halfX, halfY];
  }

  /** At a place [m], on MuJoCo's triangles. */
  at(x, y) {
    if (!this.field) return 0;
    const clamp = (value, most) => Math.min(Math.max(value, 0), most);
    const u = clamp((x + this.half[0]) / this.field.cell, this.columns - 1);
    const v = clamp((y + this.half[1]) / this.field.cell, this.rows - 1);
    const column = Math.min(Math.floor(u), this.columns - 2), row = Math.min(Math.floor(v), this.rows - 2);
    const [dx, dy] = [u - column, v - row];
    const index = row * this.columns + column;
    const [corner, right, up, over] = [0, 1, this.columns, this.columns + 1].map((k) => this.heights[index + k]);
    return dx >= dy ? corner + dx * (right - corner) + dy * (over - right) : corner + dy * (up - corner) + dx * (over - up);
  }

  /** The whole periods [m] that bring a place back into the middle one. */
  wayBack(x, y) {
    if (!this.field) return [0, 0];
    const { period, corner } = this.field;
    return [x, y].map((value, k) => -period * Math.floor((value - corner[k]) / period) || 0);
  }
}

// --- the robot ---

export class Simulation {
  /**
   * mujoco, ort: the loaded packages. session: of the policy. bundle: bundle.json. robot: of site.json. xml: the
   * scene. field: of site.json, null for flat ground.
   */
  constructor({ mujoco, ort, session, bundle, robot, xml, field }) {
    Object.assign(this, { mujoco, ort, session, bundle, robot });
    this.model = mujoco.MjModel.from_xml_string(xml);
    this.data = new mujoco.MjData(this.model);
    this.ground = new Ground(this.model, field);
    this.joints = bundle.joint_names.length;
    this.dt = this.model.opt.timestep;
    this.substeps = Math.round(bundle.physics_rate_hz / bundle.control_rate_hz);
    this.period = this.substeps * this.dt;
    const { kp, kd } = bundle;
    const { actuator_gainprm: gain, actuator_biasprm: bias } = this.model;
    const width = gain.length / this.model.nu; // parameters of an actuator
    for (let j = 0; j < this.joints; j++) {
      gain[j * width] = kp[j];
      bias[j * width + 1] = -kp[j];
      bias[j * width + 2] = -kd[j];
    }
    this.push = null; // {body, point: in its frame [m], force: in the world [N], or towards: a place in the world [m]}
    this.time = 0; // [s]; it goes on when the robot is put back
    this.shifted = [0, 0]; // by how many metres of whole periods it was moved, in all
    this.place();
  }

  delete() {
    this.data.delete();
    this.model.delete();
  }

  /** At rest in the home pose, its memory empty; x, y [m] and yaw [rad] in the world. */
  place(x, y, yaw = 0) {
    const { mujoco, model, data, robot } = this;
    if (x === undefined) [x, y] = this.ground.field?.place ?? [0, 0];
    mujoco.mj_resetData(model, data);
    const [sine, cosine] = [Math.sin(yaw), Math.cos(yaw)];
    const lift = Math.max(...robot.feet.map(([fx, fy]) => this.ground.at(x + cosine * fx - sine * fy, y + sine * fx + cosine * fy)));
    const qpos = data.qpos;
    qpos.set(robot.home_qpos);
    qpos[0] = x;
    qpos[1] = y;
    qpos[2] += lift;
    if (yaw) qpos.set([Math.cos(yaw / 2), 0, 0, Math.sin(yaw / 2)], 3);
    mujoco.mj_forward(model, data);
    this.wanted = Array.from(qpos.slice(7));
    this.begun = this.wanted;
    this.left = 0; // physics steps until the targets are reached
    this.due = 0; // and until the next control step
    this.past = Array(3).fill(this.moment()); // now, one and two control steps ago
    this.action = new Float32Array(this.joints);
    this.memory = Object.fromEntries(
      Object.entries(this.bundle.memory).map(([name, size]) => [name, this.tensor(new Float32Array(size))]),
    );
    this.velocity = [0, 0, 0];
    this.low = 0; // how long it has lain [s]
  }

  tensor(values) {
    return new this.ort.Tensor("float32", values, [1, values.length]);
  }

  /** Root position, quaternion, and velocity of the IMU, in the world. */
  moment() {
    const { qpos, qvel } = this.data;
    const quat = Array.from(qpos.slice(3, 7));
    const velocity = turned(quat, cross(qvel.slice(3, 6), this.bundle.imu_position)).map((part, k) => part + qvel[k]);
    return { position: Array.from(qpos.slice(0, 3)), quat, velocity };
  }

  /** What the policy is shown, (1, o); angular velocity and acceleration are means over the last control step. */
  observe() {
    const [now, before, first] = this.past;
    const { home_pose: home, accelerometer } = this.bundle;
    const { period } = this;
    const gyro = difference(now.quat, before.quat).map((part) => part / period);
    const change = [0, 1, 2].map((k) =>
      accelerometer === "root"
        ? (now.position[k] - 2 * before.position[k] + first.position[k]) / period
        : now.velocity[k] - before.velocity[k],
    );
    const up = turned(now.quat, [0, 0, 1], true);
    const felt = turned(now.quat, change, true).map((part, k) => (part / period + GRAVITY * up[k]) / GRAVITY);
    const angles = this.data.qpos.slice(7);
    return Float32Array.from([...home.map((angle, j) => angles[j] - angle), ...this.action, ...gyro, ...felt, ...up]);
  }

  /** Ask the policy; before a physics step where `due` is 0. command: in the task's units. */
  async control(command) {
    const observation = this.observe();
    const feeds = { obs: this.tensor(observation), command: this.tensor(Float32Array.from(command)), ...this.memory };
    const { action, ...memory } = await this.session.run(feeds);
    this.action = action.data;
    this.memory = Object.fromEntries(Object.keys(this.memory).map((name) => [name, memory[`${name}_next`]]));
    const { home_pose: home, joint_range: range, hold } = this.bundle;
    this.begun = this.setpoint();
    this.wanted = home.map((angle, j) => Math.min(Math.max(angle + this.action[j], range[j][0]), range[j][1]));
    this.left = hold === "first_order" ? this.substeps : 0;
    this.due = this.substeps;
    this.told = Array.from(command);
    this.observation = observation;
  }

  /** Where the drives are now on their way to the target, [rad] of each joint. */
  setpoint() {
    const share = this.left / this.substeps;
    return this.wanted.map((angle, j) => angle + share * (this.begun[j] - angle));
  }

  /** One physics step. */
  step() {
    const { mujoco, model, data } = this;
    this.left = Math.max(0, this.left - 1);
    data.ctrl.set(this.setpoint());
    this.applyPush();
    mujoco.mj_step(model, data);
    this.time += this.dt;
    this.due -= 1;
    if (this.due === 0) this.remember();
  }

  applyPush() {
    const { xfrc_applied: wrench, xpos, xquat, xipos, qvel } = this.data;
    wrench.fill(0);
    if (!this.push) return;
    const { body, point, towards } = this.push;
    const at = turned(xquat.slice(4 * body, 4 * body + 4), point).map((part, k) => part + xpos[3 * body + k]);
    if (towards) {
      // a spring of the robot's weight over PULL_REACH of its height, damped: what is held does not fly off
      const { weight, home_qpos: home } = this.robot;
      const stiffness = weight / (PULL_REACH * home[2]);
      const damping = Math.sqrt((stiffness * weight) / GRAVITY);
      const force = towards.map((part, k) => stiffness * (part - at[k]) - damping * qvel[k]);
      const share = Math.min(1, (MOST_PULL * weight) / Math.hypot(...force));
      this.push.force = force.map((part) => part * share);
    }
    const lever = at.map((part, k) => part - xipos[3 * body + k]);
    wrench.set([...this.push.force, ...cross(lever, this.push.force)], 6 * body);
  }

  /** A control step is over. */
  remember() {
    const now = this.moment(), before = this.past[0];
    this.past = [now, before, this.past[1]];
    const [vx, vy] = [0, 1].map((k) => (now.position[k] - before.position[k]) / this.period);
    const yaw = this.yaw();
    const [sine, cosine] = [Math.sin(yaw), Math.cos(yaw)];
    const up = turned(now.quat, [0, 0, 1], true);
    const turn = difference(now.quat, before.quat).reduce((sum, part, k) => sum + part * up[k], 0) / this.period;
    this.velocity = [cosine * vx + sine * vy, cosine * vy - sine * vx, turn]; // achieved, in the heading frame
    const height = now.position[2] - this.ground.at(now.position[0], now.position[1]);
    const lies = up[2] < UPRIGHT || height < LOW * this.robot.home_qpos[2];
    this.low = lies ? this.low + this.period : 0;
    this.upright = up[2];
    this.goBack();
  }

  /** On ground that repeats itself: back by whole periods, which nobody sees or feels. */
  goBack() {
    const { position } = this.past[0];
    const back = this.ground.wayBack(position[0], position[1]);
    if (!back[0] && !back[1]) return;
    const { qpos } = this.data;
    for (const k of [0, 1]) {
      this.shifted[k] += back[k];
      qpos[k] += back[k];
      for (const moment of this.past) moment.position[k] += back[k];
    }
  }

  yaw() {
    const [w, x, y, z] = this.data.qpos.slice(3, 7);
    return Math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z));
  }

  get broken() {
    return !Number.isFinite(this.data.qpos[2]) || !Number.isFinite(this.action[0]);
  }
}
