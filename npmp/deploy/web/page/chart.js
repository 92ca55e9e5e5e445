// Command and achieved velocity of the last seconds, one row for each part of the command.

const SHOWN_S = 6;
const MEAN_S = 0.25; // achieved velocity sways with every stride: drawn is its mean over so much

export class Chart {
  constructor(canvas, figures) {
    this.canvas = canvas;
    this.figures = figures; // elements for [command, achieved] in numbers, of each row
    this.clear();
  }

  clear() {
    this.rows = []; // {time, command, velocity}
  }

  add(time, command, velocity) {
    const { rows } = this;
    if (rows.length && time <= rows.at(-1).time) this.clear();
    rows.push({ time, command: [...command], velocity: [...velocity] });
    while (rows[0].time < time - SHOWN_S - 1) rows.shift();
  }

  /** The mean velocity over the time before row i. */
  mean(i, k) {
    const { rows } = this;
    let sum = 0, count = 0;
    for (let j = i; j >= 0 && rows[j].time > rows[i].time - MEAN_S; j--, count++) sum += rows[j].velocity[k];
    return sum / count;
  }

  draw(ranges) {
    const { canvas, rows } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !rows.length) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const [ink, told, went] = ["--line", "--told", "--went"].map((name) => style.getPropertyValue(name));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const now = rows.at(-1).time, tall = height / ranges.length;
    ranges.forEach(([low, high], k) => {
      const spare = 0.15 * (high - low);
      const [bottom, reach] = [low - spare, high + spare];
      const x = (time) => width * (1 - (now - time) / SHOWN_S);
      const y = (value) => tall * k + 3 + (tall - 6) * (1 - (Math.min(Math.max(value, bottom), reach) - bottom) / (reach - bottom));
      const line = (colour, thick, value) => {
        context.beginPath();
        rows.forEach((row, i) => context.lineTo(x(row.time), y(value(row, i))));
        context.strokeStyle = colour;
        context.lineWidth = thick;
        context.stroke();
      };
      context.fillStyle = ink;
      context.fillRect(0, Math.round(y(0)), width, 1);
      line(told, 2, (row) => row.command[k]);
      line(went, 1.75, (_, i) => this.mean(i, k));
      const [command, achieved] = this.figures[k];
      const text = (value) => (Math.abs(value) < 0.005 ? 0 : value).toFixed(2);
      command.textContent = text(rows.at(-1).command[k]);
      achieved.textContent = text(this.mean(rows.length - 1, k));
    });
  }
}
