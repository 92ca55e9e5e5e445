// One robot in MuJoCo with its policy, as npmp/deploy simulates it (simulated.py, onnx_policy.py).

const GRAVITY = 9.81; // [m/s2] per g
const UPRIGHT = Math.cos(Math.PI / 4); // vertical component of `up` below which it has fallen

/** A vector rotated by a quaternion (w, x, y, z), or by its inverse. */
function rotate([w, x, y, z], [a, b, c], inverse = false) {
  if (inverse) [x, y, z] = [-x, -y, -z];
  const tx = 2 * (y * c - z * b), ty = 2 * (z * a - x * c), tz = 2 * (x * b - y * a);
  return [
    a + w * tx + y * tz - z * ty, b + w * ty + z * tx - x * tz, c + w * tz + x * ty - y * tx,
  ];
}

/** mju_subQuat: the rotation vector from `before` to `now`, in the frame of `before`. */
function difference([bw, bx, by, bz], [aw, ax, ay, az]) {
  const axis = [
    aw * bx - ax * bw - ay * bz + az * by,
    aw * by + ax * bz - ay * bw - az * bx,
    aw * bz - ax * by + ay * bx - az * bw,
  ];
  const sine = Math.hypot(...axis);
  let angle = 2 * Math.atan2(sine, aw * bw + ax * bx + ay * by + az * bz);
  if (angle > Math.PI) angle -= 2 * Math.PI;
  return sine < 1e-15 ? [0, 0, 0] : axis.map((part) => (part * angle) / sine);
}

export class Simulation {
  /** xml: the scene. contract: bundle.json. settings: page.json. session: of policy.onnx. */
  constructor({ mujoco, ort, session, xml, contract, settings }) {
    Object.assign(this, { mujoco, ort, session, contract, settings });
    this.model = mujoco.MjModel.from_xml_string(xml);
    this.data = new mujoco.MjData(this.model);
    this.substeps = Math.round(contract.physics_rate_hz / contract.control_rate_hz);
    this.dt = 1 / contract.physics_rate_hz;
    this.period = this.substeps * this.dt;
    const { actuator_gainprm: gain, actuator_biasprm: bias, nu } = this.model;
    contract.joints.forEach(({ kp, kd }, j) => {
      gain[(j * gain.length) / nu] = kp;
      bias[(j * bias.length) / nu + 1] = -kp;
      bias[(j * bias.length) / nu + 2] = -kd;
    });
    this.reset();
  }

  /** At rest in the home pose, with zero recurrent state. */
  reset() {
    const { mujoco, model, data, contract } = this;
    mujoco.mj_resetData(model, data);
    data.qpos.set(this.settings.home_qpos);
    mujoco.mj_forward(model, data);
    this.target = Array.from(data.qpos.slice(7));
    this.start = this.target;
    this.stepsLeft = 0; // physics steps until the setpoint reaches its target
    this.untilControl = 0; // physics steps until the next control step
    this.motions = Array(3).fill(this.rootMotion()); // now, one and two control steps ago
    this.action = new Float32Array(contract.joints.length);
    this.memory = Object.fromEntries(Object.entries(contract.memory).map(
      ([name, width]) => [name, this.tensor(new Float32Array(width))]));
    this.velocity = [0, 0, 0];
    this.up = [0, 0, 1];
  }

  tensor(values) { return new this.ort.Tensor("float32", values, [1, values.length]); }

  /** Root position, quaternion, and velocity of the IMU, in the world. */
  rootMotion() {
    const { qpos, qvel } = this.data, quat = Array.from(qpos.slice(3, 7));
    const [x, y, z] = this.contract.imu_position, [a, b, c] = qvel.slice(3, 6);
    const lever = rotate(quat, [b * z - c * y, c * x - a * z, a * y - b * x]);
    const velocity = lever.map((part, k) => part + qvel[k]);
    return { position: Array.from(qpos.slice(0, 3)), quat, velocity };
  }

  /** `obs` of the graph; gyro and accelerometer are means over the last control step. */
  observe() {
    const [now, last, first] = this.motions, { period } = this;
    const gyro = difference(now.quat, last.quat).map((part) => part / period);
    const change = [0, 1, 2].map((k) => this.contract.accelerometer === "root"
      ? (now.position[k] - 2 * last.position[k] + first.position[k]) / period
      : now.velocity[k] - last.velocity[k]);
    const up = rotate(now.quat, [0, 0, 1], true);
    const force = rotate(now.quat, change, true).map((part, k) => part / period / GRAVITY + up[k]);
    const angles = this.data.qpos.slice(7);
    const position = this.contract.joints.map(({ home }, j) => angles[j] - home);
    return Float32Array.from([...position, ...this.action, ...gyro, ...force, ...up]);
  }

  /** One step of the policy. command: in its units, within its ranges. */
  async control(command) {
    this.observation = this.observe();
    const outputs = await this.session.run({
      obs: this.tensor(this.observation),
      command: this.tensor(Float32Array.from(command)),
      ...this.memory,
    });
    this.action = outputs.action.data;
    for (const name in this.memory) this.memory[name] = outputs[`${name}_next`];
    this.start = this.setpoint();
    this.target = this.contract.joints.map(({ home, range: [low, high] }, j) =>
      Math.min(Math.max(home + this.action[j], low), high));
    this.stepsLeft = this.contract.hold === "first_order" ? this.substeps : 0;
    this.untilControl = this.substeps;
  }

  /** The interpolated setpoint of the drives [rad]. */
  setpoint() {
    const share = this.stepsLeft / this.substeps;
    return this.target.map((angle, j) => angle + share * (this.start[j] - angle));
  }

  /** One physics step, with a control step before it where one is due. */
  async step(command) {
    const { mujoco, model, data } = this;
    if (this.untilControl === 0) await this.control(command);
    this.stepsLeft = Math.max(0, this.stepsLeft - 1);
    data.ctrl.set(this.setpoint());
    mujoco.mj_step(model, data);
    this.untilControl -= 1;
    if (this.untilControl > 0) return;
    const now = this.rootMotion(), last = this.motions[0];
    this.motions = [now, last, this.motions[1]];
    this.up = rotate(now.quat, [0, 0, 1], true);
    const [x, y] = [0, 1].map((k) => (now.position[k] - last.position[k]) / this.period);
    const [forwardX, forwardY] = rotate(now.quat, [1, 0, 0]), norm = Math.hypot(forwardX, forwardY);
    const [cos, sin] = [forwardX / norm, forwardY / norm];
    const turn = difference(now.quat, last.quat);
    const rate = turn.reduce((sum, part, k) => sum + part * this.up[k], 0) / this.period;
    this.velocity = [cos * x + sin * y, cos * y - sin * x, rate]; // in the heading frame
  }

  /** Whether it lies or the simulation has diverged. */
  get fallen() { return !(this.up[2] >= UPRIGHT); }
}
