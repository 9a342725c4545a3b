// A line chart of the last minute, on a canvas. Drawn only when a value arrives.

import { themeColour } from './dom.js';

const WINDOW_S = 60;

/** Keeps the values of the last minute and draws them. */
export class Sparkline {
  constructor(canvas, property) {
    this.canvas = canvas;
    this.property = property;
    this.points = [];
    this.restyle();
  }

  /** Reads the colours of the theme again. */
  restyle() {
    this.colour = themeColour(this.property);
    this.draw();
  }

  /** Adds a value at a time in seconds. */
  push(time, value) {
    if (this.points.length && time < this.points.at(-1).time) this.points = [];
    this.points.push({ time, value });
    while (this.points.length > 2 && this.points[1].time < time - WINDOW_S) this.points.shift();
    this.draw();
  }

  /** The largest value of the minute. */
  peak() {
    return this.points.reduce((most, point) => Math.max(most, point.value), 0);
  }

  draw() {
    const { canvas, points } = this;
    const scale = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale);
    const height = Math.round(canvas.clientHeight * scale);
    if (width === 0 || height === 0) return;
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    const context = canvas.getContext('2d');
    context.clearRect(0, 0, width, height);
    const stroke = 1.5 * scale;
    const base = height - stroke;
    context.fillStyle = this.colour;
    context.globalAlpha = 0.25;
    context.fillRect(0, height - scale, width, scale);
    context.globalAlpha = 1;
    if (points.length < 2) return;
    const last = points.at(-1).time;
    const most = Math.max(this.peak(), 1e-9);
    const x = (time) => width * (1 - (last - time) / WINDOW_S);
    const y = (value) => base - (value / most) * (base - stroke * 1.5);
    context.beginPath();
    points.forEach((point, index) => (index ? context.lineTo(x(point.time), y(point.value)) : context.moveTo(x(point.time), y(point.value))));
    context.strokeStyle = this.colour;
    context.lineWidth = stroke;
    context.lineJoin = 'round';
    context.stroke();
    context.lineTo(x(last), height);
    context.lineTo(x(points[0].time), height);
    context.closePath();
    const fade = context.createLinearGradient(0, 0, 0, height);
    fade.addColorStop(0, this.colour.replace('rgb(', 'rgba(').replace(')', ', 0.35)'));
    fade.addColorStop(1, this.colour.replace('rgb(', 'rgba(').replace(')', ', 0)'));
    context.fillStyle = fade;
    context.fill();
  }
}
