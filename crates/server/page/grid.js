// The expert grid: one square per expert, one band per layer; squares glow when used and flash when read.
//
// Pixels are written directly into an image, so that ten thousand squares cost less than a millisecond. The loop runs only
// while a square glows. The one invariant: squares shown as resident are the bits the server sent last.

import { themeColour } from './dom.js';
import { formatCount, formatShare, plural } from './format.js';

const GLOW_S = 0.55;
const FLASH_S = 0.9;
const FRAME_MS = 33;
const BEAT_MS = 250;
const COLD = 0.02;
const GUTTER_PX = 24;
/** The padding to the right of the canvas, as in the style sheet. */
const MARGIN_PX = 8;
const CELLS_MAX = 1 << 20;
const SPACE_PX = 3;
/** Few experts do not make huge squares. */
const COLUMNS_MIN = 14;

/** Decodes a bitset, least significant bit first, into one byte per expert. */
export function decodeBits(text, count) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const bits = new Uint8Array(count);
  for (let index = 0; index < count; index += 1) bits[index] = ((bytes[index >> 3] ?? 0) >> (index & 7)) & 1;
  return bits;
}

/** Where squares go, in device pixels: layers may take several rows each, so that squares become as large as the space allows. */
export function chooseLayout(layers, experts, width, heightMax) {
  let best = null;
  for (let rows = 1; rows <= 64 && rows <= experts; rows += 1) {
    const columns = Math.ceil(experts / rows);
    const space = rows > 1 ? SPACE_PX : 0;
    const across = Math.min(width / columns, width / COLUMNS_MIN);
    const down = Math.floor(Math.min(across, (heightMax / layers - space) / rows));
    if (!best || Math.min(across, down) > Math.min(best.across, best.down)) best = { across, down, rows, columns, band: rows * down + space };
  }
  if (best.down < 1 || best.across < 1) {
    // No layout fits: one pixel per square, with as many rows as that takes.
    const columns = Math.max(1, Math.min(experts, Math.floor(width)));
    const rows = Math.ceil(experts / columns);
    best = { across: 1, down: 1, rows, columns, band: rows + 1 };
  }
  const size = Math.min(best.across, best.down);
  return { ...best, gap: size >= 12 ? 3 : size >= 7 ? 2 : size >= 3 ? 1 : 0 };
}

/** Draws the grid on a canvas, with a tooltip for single experts. */
export class ExpertGrid {
  constructor(canvas, tooltip, heightMax) {
    this.canvas = canvas;
    this.tooltip = tooltip;
    this.heightMax = heightMax;
    this.layers = 0;
    this.experts = 0;
    this.queue = [];
    this.frame = 0;
    this.drawn = 0;
    this.still = matchMedia('(prefers-reduced-motion: reduce)');
    this.pointed = -1;
    canvas.addEventListener('pointermove', (event) => this.point(this.cellAt(event.offsetX, event.offsetY)));
    canvas.addEventListener('pointerleave', () => this.point(-1));
    canvas.addEventListener('blur', () => this.point(-1));
    canvas.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => {
      if (canvas.parentElement.clientWidth !== this.laidOutWidth) this.layout();
    }).observe(canvas.parentElement);
  }

  /** Sets the number of layers and experts, and resets all counts. */
  shape(layers, experts) {
    const count = layers * experts;
    this.valid = Number.isInteger(count) && count > 0 && count <= CELLS_MAX;
    this.layers = layers;
    this.experts = experts;
    const size = this.valid ? count : 0;
    this.resident = new Uint8Array(size);
    this.glow = new Float32Array(size);
    this.flash = new Float32Array(size);
    this.hits = new Uint32Array(size);
    this.reads = new Uint32Array(size);
    this.queue = [];
    this.lastBeat = { hits: 0, reads: 0 };
    this.layout();
  }

  /** Takes the grid of one beat. */
  beat(grid) {
    if (!this.valid || !grid) return;
    if (typeof grid.resident === 'string') this.resident = decodeBits(grid.resident, this.layers * this.experts);
    const now = performance.now();
    this.lastBeat = { hits: 0, reads: 0 };
    const take = (given, counts, kind) => {
      const list = Array.isArray(given) ? given : [];
      // The busiest of a beat shines brightest, however many tokens it held.
      const most = list.reduce((found, [, , times = 1]) => Math.max(found, times), 1);
      for (const [layer, expert, times = 1] of list) {
        if (!(layer >= 0 && layer < this.layers && expert >= 0 && expert < this.experts)) continue;
        const cell = layer * this.experts + expert;
        counts[cell] += times;
        this.lastBeat[kind] += times;
        // Layers light up one after the other, as a token passes them.
        this.queue.push({ at: this.still.matches ? now : now + (layer / this.layers) * BEAT_MS, cell, kind, strength: 0.3 + 0.7 * Math.sqrt(Math.min(1, times / most)) });
      }
    };
    take(grid.hits, this.hits, 'hits');
    take(grid.reads, this.reads, 'reads');
    this.queue.sort((a, b) => a.at - b.at);
    this.wake();
  }

  /** The state as a text. */
  summary() {
    if (!this.valid) return '';
    const total = this.layers * this.experts;
    const resident = this.resident.reduce((sum, bit) => sum + bit, 0);
    let busiest = 0;
    for (let cell = 1; cell < total; cell += 1) if (this.hits[cell] > this.hits[busiest]) busiest = cell;
    const kept = resident === total ? `All ${formatCount(total)} experts are in memory.` : `${formatCount(resident)} of ${formatCount(total)} experts (${formatShare(resident / total)}) are in memory.`;
    const used = this.lastBeat.hits || this.lastBeat.reads ? ` Latest update: ${plural(this.lastBeat.hits, 'expert use')}${resident === total ? '' : `, ${plural(this.lastBeat.reads, 'disk read')}`}.` : ' No expert is in use.';
    const most = this.hits[busiest] ? ` Most used so far: layer ${Math.floor(busiest / this.experts)}, expert ${busiest % this.experts} (${plural(this.hits[busiest], 'use')}).` : '';
    return kept + used + most;
  }

  /** Reads the colours of the theme again. */
  restyle() {
    const colour = (name) => themeColour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
    this.colours = { back: colour('--panel-well'), absent: colour('--grid-absent'), resident: colour('--grid-resident'), glow: colour('--grid-glow'), flash: colour('--grid-flash') };
    this.labelColour = themeColour('--text-soft');
    this.paint();
  }

  layout() {
    if (!this.valid) return;
    // At least two pixels for each of the page's: squares may then be a half wider, and fill the width.
    const scale = Math.max(2, devicePixelRatio || 1);
    const available = Math.floor((this.canvas.parentElement.clientWidth - MARGIN_PX) * scale) - GUTTER_PX * scale;
    if (available < 20) return;
    this.laidOutWidth = this.canvas.parentElement.clientWidth;
    this.scale = scale;
    this.plan = chooseLayout(this.layers, this.experts, available, this.heightMax() * scale);
    const width = Math.round(this.plan.columns * this.plan.across);
    this.edges = Array.from({ length: this.plan.columns + 1 }, (_, column) => Math.round(column * this.plan.across));
    const height = this.plan.band * this.layers;
    this.canvas.width = Math.round(width + GUTTER_PX * scale);
    this.canvas.height = height;
    this.canvas.style.width = `${this.canvas.width / scale}px`;
    this.canvas.style.height = `${height / scale}px`;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.restyle();
  }

  cellAt(x, y) {
    if (!this.plan) return -1;
    const { across, down, rows, columns, band } = this.plan;
    const column = Math.floor((x * this.scale - GUTTER_PX * this.scale) / across);
    const layer = Math.floor((y * this.scale) / band);
    const row = Math.floor((y * this.scale - layer * band) / down);
    const expert = row * columns + column;
    if (column < 0 || column >= columns || row >= rows || layer >= this.layers || expert >= this.experts) return -1;
    return layer * this.experts + expert;
  }

  point(cell) {
    if (cell === this.pointed) return;
    this.pointed = cell;
    this.updateTooltip();
    this.paint();
  }

  updateTooltip() {
    const { pointed, tooltip } = this;
    tooltip.hidden = pointed < 0;
    if (pointed < 0) return;
    const layer = Math.floor(pointed / this.experts);
    const expert = pointed % this.experts;
    const state = this.resident[pointed] ? 'in memory' : 'on the disk';
    tooltip.textContent = `Layer ${layer}, expert ${expert}: ${state}, used ${plural(this.hits[pointed], 'time')}, read ${plural(this.reads[pointed], 'time')}`;
    const { down, columns, band } = this.plan;
    const x = (GUTTER_PX * this.scale + this.edges[expert % columns]) / this.scale;
    const y = (layer * band + Math.floor(expert / columns) * down) / this.scale;
    const room = this.canvas.parentElement.clientWidth - tooltip.offsetWidth;
    tooltip.style.left = `${Math.max(0, Math.min(x - tooltip.offsetWidth / 2, room))}px`;
    tooltip.style.top = `${y > tooltip.offsetHeight + 10 ? y - tooltip.offsetHeight - 8 : y + down / this.scale + 8}px`;
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.experts, ArrowUp: -this.experts }[event.key];
    if (!step || !this.valid) return;
    event.preventDefault();
    const next = this.pointed < 0 ? 0 : this.pointed + step;
    if (next >= 0 && next < this.layers * this.experts) this.point(next);
  }

  wake() {
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.step(now));
  }

  step(now) {
    this.frame = 0;
    if (!this.canvas.isConnected || !this.plan) return;
    const passed = now - this.drawn;
    if (passed < FRAME_MS) {
      this.wake();
      return;
    }
    this.drawn = now;
    const seconds = Math.min(passed / 1000, 0.5);
    const cool = this.still.matches ? 0 : Math.exp(-seconds / GLOW_S);
    const fade = this.still.matches ? 0 : Math.exp(-seconds / FLASH_S);
    let alive = false;
    for (let cell = 0; cell < this.glow.length; cell += 1) {
      if (this.glow[cell] > COLD || this.flash[cell] > COLD) alive = true;
      this.glow[cell] *= cool;
      this.flash[cell] *= fade;
    }
    let due = 0;
    for (; due < this.queue.length && this.queue[due].at <= now; due += 1) {
      const { cell, kind, strength } = this.queue[due];
      const target = kind === 'hits' ? this.glow : this.flash;
      target[cell] = Math.max(target[cell], kind === 'hits' ? strength : 1);
    }
    this.queue.splice(0, due);
    this.paint();
    if (this.pointed >= 0) this.updateTooltip();
    // With reduced motion a beat's squares stay lit until the next beat.
    if (this.queue.length || ((alive || due) && !this.still.matches)) this.wake();
  }

  paint() {
    if (!this.plan || !this.colours) return;
    const { down, rows, columns, gap, band } = this.plan;
    const { back, absent, resident, glow, flash } = this.colours;
    const width = this.image.width;
    this.pixels.fill(pack(back));
    const inset = gap > 1 ? 1 : 0;
    for (let layer = 0; layer < this.layers; layer += 1) {
      for (let row = 0; row < rows; row += 1) {
        const top = layer * band + row * down;
        for (let column = 0; column < columns; column += 1) {
          const expert = row * columns + column;
          if (expert >= this.experts) break;
          const index = layer * this.experts + expert;
          let colour = this.resident[index] ? resident : absent;
          const heat = this.glow[index];
          const spark = this.flash[index];
          if (heat > COLD) colour = mix(colour, glow, heat);
          if (spark > COLD) colour = mix(colour, flash, spark);
          const left = this.edges[column];
          const wide = this.edges[column + 1] - left;
          if (gap > 1 && (heat > 0.2 || spark > 0.2)) {
            // A halo in the gap makes the square shine.
            fill(this.pixels, width, left, top, wide - 1, down - 1, pack(mix(back, colour, 0.35 * Math.max(heat, spark))));
          }
          fill(this.pixels, width, left + inset, top + inset, wide - gap, down - gap, pack(colour));
          if (down - gap >= 5) clipCorners(this.pixels, width, left + inset, top + inset, wide - gap, down - gap, pack(mix(back, colour, 0.35)));
        }
      }
    }
    const context = this.canvas.getContext('2d');
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.putImageData(this.image, Math.round(GUTTER_PX * this.scale), 0);
    this.labels(context);
    if (this.pointed >= 0) this.outline(context);
  }

  labels(context) {
    const { band } = this.plan;
    context.fillStyle = this.labelColour;
    context.font = `${10 * this.scale}px ui-monospace, monospace`;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    const every = Math.max(1, Math.ceil((13 * this.scale) / band));
    for (let layer = 0; layer < this.layers; layer += every) {
      const y = Math.max(6 * this.scale, layer * band + (band * Math.min(1, every)) / 2);
      context.fillText(String(layer), (GUTTER_PX - 6) * this.scale, Math.min(y, this.canvas.height - 5 * this.scale));
    }
  }

  outline(context) {
    const { across, down, columns, band } = this.plan;
    const layer = Math.floor(this.pointed / this.experts);
    const expert = this.pointed % this.experts;
    context.strokeStyle = this.labelColour;
    context.lineWidth = Math.max(1, this.scale);
    context.strokeRect(GUTTER_PX * this.scale + this.edges[expert % columns] - 0.5, layer * band + Math.floor(expert / columns) * down - 0.5, across, down);
  }
}

function mix(from, to, share) {
  return [from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share, from[2] + (to[2] - from[2]) * share];
}

// ImageData is red, green, blue, alpha in memory; every machine that runs a browser is little endian.
function pack([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function fill(pixels, width, left, top, across, down, colour) {
  for (let y = top; y < top + down; y += 1) pixels.fill(colour, y * width + left, y * width + left + across);
}

function clipCorners(pixels, width, left, top, across, down, colour) {
  for (const [x, y] of [[0, 0], [across - 1, 0], [0, down - 1], [across - 1, down - 1]]) pixels[(top + y) * width + left + x] = colour;
}
