// What a visitor wants of the robot: keys, sticks on the screen, and a gamepad, as one command.

const DEAD_ZONE = 0.1; // of a gamepad's sticks
const RAMP_S = 0.4; // from zero to the end of a command's range

// key codes, which do not depend on the keyboard's language: [forward, left, turn left]
const KEYS = {
  KeyW: [1, 0, 0], ArrowUp: [1, 0, 0],
  KeyS: [-1, 0, 0], ArrowDown: [-1, 0, 0],
  KeyA: [0, 0, 1], KeyD: [0, 0, -1],
  KeyQ: [0, 1, 0], KeyE: [0, -1, 0],
  ArrowLeft: [0, 0, 1], ArrowRight: [0, 0, -1],
};

/** A stick's position beyond the dead zone, again from 0 to 1. */
export function beyondDeadZone(x, y, zone = DEAD_ZONE) {
  const length = Math.hypot(x, y);
  if (!(length > zone)) return [0, 0];
  const share = Math.min(1, (length - zone) / (1 - zone)) / length;
  return [x * share, y * share];
}

export class Steering {
  /** pads: elements of the two sticks, move and turn. */
  constructor(pads) {
    this.held = new Set();
    this.sticks = { move: [0, 0], turn: [0, 0] };
    this.speed = 1; // share of the ranges that full deflection means
    this.command = [0, 0, 0];
    addEventListener("keydown", (event) => this.key(event, true));
    addEventListener("keyup", (event) => this.key(event, false));
    for (const name of ["blur", "pagehide"]) addEventListener(name, () => this.release());
    document.addEventListener("visibilitychange", () => this.release());
    for (const [name, element] of Object.entries(pads)) this.stick(name, element);
  }

  key(event, down) {
    if (!(event.code in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches?.("select, input") && down) return;
    event.preventDefault(); // arrows would scroll
    if (down) this.held.add(event.code);
    else this.held.delete(event.code);
  }

  release() {
    this.held.clear();
  }

  /** Let an element be a stick: from -1 to 1, to the right and up. */
  stick(name, element) {
    const knob = element.firstElementChild;
    let pointer = null;
    const put = (x, y) => {
      this.sticks[name] = [x, y];
      knob.style.transform = `translate(${x * 36}px, ${-y * 36}px)`;
    };
    const moved = (event) => {
      if (event.pointerId !== pointer) return;
      const box = element.getBoundingClientRect();
      let x = (event.clientX - box.left) / (box.width / 2) - 1, y = 1 - (event.clientY - box.top) / (box.height / 2);
      if (name === "turn") y = 0;
      const length = Math.max(1, Math.hypot(x, y));
      put(x / length, y / length);
    };
    const ended = (event) => {
      if (event.pointerId !== pointer) return;
      pointer = null;
      put(0, 0);
    };
    element.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      pointer = event.pointerId;
      element.setPointerCapture(pointer);
      moved(event);
    });
    element.addEventListener("pointermove", moved);
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"]) element.addEventListener(kind, ended);
  }

  /** [forward, left, turn left], each from -1 to 1. */
  wish() {
    const sum = [0, 0, 0];
    const add = (part) => part.forEach((value, k) => (sum[k] += value));
    for (const code of this.held) add(KEYS[code]);
    const tilted = (stick) => beyondDeadZone(...stick);
    const [right, ahead] = tilted(this.sticks.move);
    add([ahead, -right, -tilted(this.sticks.turn)[0]]);
    for (const pad of navigator.getGamepads?.() ?? []) {
      if (!pad?.connected || pad.axes.length < 2) continue; // unplugged: nothing of it is left
      const [x, y] = beyondDeadZone(pad.axes[0], pad.axes[1]);
      add([-y, -x, -beyondDeadZone(pad.axes[2] ?? 0, 0)[0]]);
    }
    return sum.map((value) => Math.min(Math.max(value, -1), 1));
  }

  /** The command after dt [s], on its way to what is wished; ranges: [low, high] of each part, as trained. */
  advance(dt, ranges) {
    this.command = this.wish().map((share, k) => {
      const [low, high] = ranges[k];
      const goal = Math.min(Math.max(share * this.speed * (share > 0 ? high : -low), low), high);
      const most = (Math.max(high, -low) * dt) / RAMP_S;
      const now = Math.min(Math.max(this.command[k], low), high);
      return now + Math.min(Math.max(goal - now, -most), most);
    });
    return this.command;
  }
}
