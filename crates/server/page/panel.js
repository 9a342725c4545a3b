// "Server activity": the panel that draws the measurements of `/live`.
//
// Builds its elements once and only changes texts, widths and canvases afterwards. It sends no requests: `LiveStream`
// delivers the beats, and only while the panel is open.

import { byId, iconButton, make } from './dom.js';
import { formatBytes, formatCount, formatDrafts, formatRate, formatShare, plural } from './format.js';
import { ExpertGrid } from './grid.js';
import { Sparkline } from './spark.js';

const PLAN_COLOURS = 8;
const SUMMARY_INTERVAL_MS = 2_000;
const DRAFTS_HELP = 'Speculative decoding: tokens are drafted cheaply, and the model verifies several of them in one pass. Answers are the same as without it; it pauses when it is not faster.';

/** The panel's contents. */
export class Panel {
  constructor(body, status) {
    this.body = body;
    this.status = status;
    this.hello = null;
    this.summaryAt = 0;
    this.smoothedHits = null;
    this.build();
    this.setState('off');
  }

  build() {
    const rate = (name, title, caption, property) => {
      const value = make('span', { class: 'figure' }, '0.0');
      const peak = make('span', { class: 'soft' }, '');
      const canvas = make('canvas', { class: 'spark', role: 'img', 'aria-label': `${title} over the last minute` });
      this[name] = { value, peak, canvas, property };
      return make('div', { class: 'rate' }, make('h3', {}, title), make('p', { class: 'big' }, value, make('span', { class: 'unit' }, ' tok/s')), canvas, make('p', { class: 'caption' }, caption, peak));
    };
    this.slots = make('div', { class: 'slots', 'aria-hidden': 'true' });
    this.requests = make('p', { class: 'caption' }, '');
    this.plan = make('div', { class: 'plan-bar' });
    this.planNow = make('div', { class: 'plan-now', 'aria-hidden': 'true' });
    this.planText = make('p', { class: 'caption' }, '');
    this.legend = make('ul', { class: 'legend' });
    this.gridCanvas = make('canvas', { class: 'grid', tabindex: '0', role: 'img', 'aria-label': 'Expert grid', 'aria-describedby': 'grid-summary' });
    this.tooltip = make('div', { class: 'tooltip', role: 'status', hidden: true });
    this.gridHolder = make('div', { class: 'grid-holder' }, this.gridCanvas, this.tooltip);
    this.gridCaption = make('p', { class: 'caption' }, '');
    this.gridSummary = make('p', { class: 'caption strong', id: 'grid-summary' }, '');
    this.gridKey = make('p', { class: 'grid-key' });
    this.gridHome = make('div', {}, this.gridHolder);
    this.gridSection = make('section', { class: 'card' },
      make('div', { class: 'card-head' }, make('h3', {}, 'Experts'), iconButton('expand', 'Enlarge the expert grid', () => this.enlarge())),
      this.gridHome, this.gridKey, this.gridSummary, this.gridCaption);
    this.disk = meter('disk', 'SSD', '--grid-flash');
    this.hits = meter('hits', 'Cache hits', '--accent');
    this.pool = meter('pool', 'KV cache', '--accent-2');
    this.prefix = make('p', { class: 'caption' }, '');
    this.drafts = meter('drafts', 'Drafts', '--accent');
    this.draftsCard = make('section', { class: 'card', hidden: true, title: DRAFTS_HELP }, this.drafts.element);

    this.body.replaceChildren(
      make('section', { class: 'card rates', 'aria-label': 'Speed' },
        rate('decode', 'Decode', 'Generated tokens of all requests.', '--accent'),
        rate('prefill', 'Prefill', 'Prompt tokens that were not cached.', '--accent-2')),
      make('section', { class: 'card' }, make('h3', {}, 'Requests'), this.slots, this.requests),
      this.gridSection,
      make('section', { class: 'card', 'aria-label': 'Disk and cache' }, this.disk.element, this.hits.element),
      this.draftsCard,
      make('section', { class: 'card' }, make('h3', {}, 'Memory plan'), make('div', { class: 'plan-frame' }, this.plan, this.planNow), this.planText, this.legend),
      make('section', { class: 'card' }, this.pool.element, this.prefix),
    );
    this.decode.spark = new Sparkline(this.decode.canvas, '--accent');
    this.prefill.spark = new Sparkline(this.prefill.canvas, '--accent-2');
    this.grid = new ExpertGrid(this.gridCanvas, this.tooltip, () => (this.gridHolder.closest('dialog') ? innerHeight * 0.66 : 380));
  }

  /** Shows the state of the stream: 'off', 'waiting' or 'on'. */
  setState(state) {
    this.status.dataset.state = state;
    this.status.textContent = { off: 'paused', waiting: 'connecting…', on: 'live' }[state];
    this.body.classList.toggle('stale', state !== 'on' && this.hello !== null);
  }

  /** Reads the colours of the theme again. */
  restyle() {
    this.decode.spark.restyle();
    this.prefill.spark.restyle();
    this.grid.restyle();
  }

  /** Takes the facts that do not change while the server runs. */
  setHello(hello) {
    const before = this.hello;
    this.hello = hello;
    const { experts } = hello;
    this.gridSection.hidden = !experts;
    if (experts && (!before?.experts || before.experts.layers !== experts.layers || before.experts.experts !== experts.experts)) this.grid.shape(experts.layers, experts.experts);
    const streaming = hello.mode === 'streaming';
    this.disk.element.hidden = !streaming;
    this.hits.element.hidden = !streaming;
    this.disk.element.parentElement.hidden = !streaming;
    this.gridKey.replaceChildren(...[
      ['resident', 'in memory'], streaming && ['absent', 'on the disk'], ['glow', 'used'], streaming && ['flash', 'just read'],
    ].filter(Boolean).map(([kind, text]) => make('span', {}, make('i', { class: `swatch ${kind}` }), text)));
    if (experts) {
      this.gridCaption.textContent = `Each numbered band is one of ${experts.layers} layers, each square one of its ${experts.experts} experts. A token passes every layer and uses ${experts.experts_per_token} experts in each; experts light up when they are used. ${
        streaming ? `${formatCount(experts.slots)} of ${formatCount(experts.layers * experts.experts)} fit in memory; the others are read from the disk when they are needed.` : 'All experts of this model are kept in memory.'}`;
    }
    this.drawPlan(hello.plan);
    this.drawDrafts({});
    this.drawRequests({});
    this.drawDisk({});
  }

  /** Takes the measurements, about four times a second. */
  beat(beat) {
    if (!this.hello) return;
    for (const [part, value] of [[this.decode, beat.decode_tok_s], [this.prefill, beat.prefill_tok_s]]) {
      const rate = Number.isFinite(value) ? value : 0;
      part.value.textContent = formatRate(rate);
      part.spark.push(beat.t, rate);
      const peak = part.spark.peak();
      part.peak.textContent = peak > 0 ? ` Peak in the last minute: ${formatRate(peak)}.` : '';
    }
    this.drawDrafts(beat);
    this.drawRequests(beat);
    this.grid.beat(beat.grid);
    this.drawDisk(beat);
    this.drawPool(beat);
    this.drawNow(beat.memory_bytes);
    const now = performance.now();
    if (now - this.summaryAt > SUMMARY_INTERVAL_MS) {
      this.summaryAt = now;
      this.gridSummary.textContent = this.grid.summary();
    }
  }

  drawDrafts({ speculation }) {
    this.draftsCard.hidden = !speculation;
    if (speculation) this.drafts.set(speculation.acceptance, formatDrafts(speculation), 'Share of drafted tokens that the model accepted since the server started.');
  }

  drawRequests({ active = 0, prefilling = 0, queued = 0, limit = 0 }) {
    const parallel = Math.min(64, this.hello.parallel || active || 1);
    const kinds = Array.from({ length: parallel }, (_, index) => (index < active - prefilling ? 'decode' : index < active ? 'prefill' : 'free'));
    if (this.slots.childElementCount !== parallel) this.slots.replaceChildren(...kinds.map(() => make('i')));
    kinds.forEach((kind, index) => {
      this.slots.children[index].className = kind;
    });
    const decoding = Math.max(0, active - prefilling);
    this.requests.textContent = active || queued
      ? `${plural(decoding, 'request')} in decode, ${formatCount(prefilling)} in prefill, ${formatCount(queued)} queued${limit ? ` (at most ${formatCount(limit)})` : ''}.`
      : `Idle. Up to ${plural(this.hello.parallel || 1, 'request')} can run in one batch${limit ? `; ${formatCount(limit)} more can be queued` : ''}.`;
  }

  drawDisk(beat) {
    if (this.hello.mode !== 'streaming') return;
    const read = beat.read_bytes_s ?? 0;
    const ceiling = beat.disk_bytes_s;
    this.disk.set(ceiling ? read / ceiling : 0, `${formatBytes(read)}/s`, ceiling ? `Reads of experts that were not in memory. This disk was measured at ${formatBytes(ceiling)}/s.` : 'Reads of experts that were not in memory. The disk has not been measured yet.');
    if (Number.isFinite(beat.hit_rate)) this.smoothedHits = this.smoothedHits === null ? beat.hit_rate : this.smoothedHits * 0.8 + beat.hit_rate * 0.2;
    this.hits.set(this.smoothedHits ?? 0, this.smoothedHits === null ? '–' : formatShare(this.smoothedHits), 'Share of requested experts that were in memory, over about the last second.');
  }

  drawPool({ pool, cache }) {
    if (pool?.pages) {
      const used = pool.pages - pool.free;
      this.pool.set(used / pool.pages, `${formatCount(used)} / ${formatCount(pool.pages)} pages`, 'Pages in use by running requests, of the pool that they share.');
    }
    this.prefix.textContent = cache ? (cache.entries ? `Prefix cache: ${plural(cache.entries, 'prefix', 'prefixes')} with ${plural(cache.tokens, 'token')}. A prompt that begins with one of them skips its tokens.` : 'Prefix cache: empty. It keeps the tokens of finished requests for the next turn of a chat.') : '';
  }

  drawPlan(plan) {
    const rows = Array.isArray(plan?.rows) ? plan.rows.filter((row) => row.bytes > 0) : [];
    const whole = Math.max(plan?.budget_bytes || 0, plan?.total_bytes || 0, 1);
    this.planWhole = whole;
    this.plan.replaceChildren(...rows.map((row, index) => {
      const part = make('i', { class: `plan-part colour-${(index % PLAN_COLOURS) + 1}`, title: `${row.name}: ${formatBytes(row.bytes)}` });
      part.style.flexGrow = String(row.bytes / whole);
      return part;
    }));
    const free = whole - (plan?.total_bytes || 0);
    const rest = make('i', { class: 'plan-part plan-free', title: `free: ${formatBytes(free)}` });
    rest.style.flexGrow = String(Math.max(0, free) / whole);
    this.plan.append(rest);
    this.legend.replaceChildren(...rows.map((row, index) =>
      make('li', {}, make('i', { class: `swatch colour-${(index % PLAN_COLOURS) + 1}` }), make('span', { class: 'name' }, row.name, row.note ? make('small', {}, row.note) : null), make('span', { class: 'amount' }, formatBytes(row.bytes)))));
    this.planWords = plan?.budget_bytes ? `${formatBytes(plan.total_bytes)} of ${formatBytes(plan.budget_bytes)}, fixed before the first token` : `${formatBytes(plan?.total_bytes)} in total`;
    this.planText.textContent = `${this.planWords}.`;
  }

  drawNow(bytes) {
    this.planNow.hidden = !Number.isFinite(bytes);
    if (!Number.isFinite(bytes)) return;
    this.planNow.style.left = `${Math.min(100, (bytes / this.planWhole) * 100)}%`;
    this.planText.textContent = `${this.planWords}. In use now: ${formatBytes(bytes)} (marked by the line).`;
  }

  enlarge() {
    const dialog = byId('grid-dialog');
    byId('grid-place').replaceChildren(this.gridHolder);
    dialog.showModal();
    this.grid.layout();
    dialog.addEventListener('close', () => {
      this.gridHome.append(this.gridHolder);
      this.grid.layout();
    }, { once: true });
  }
}

/** A labelled bar: set(share, value, caption). */
function meter(id, title, property) {
  const value = make('span', { class: 'figure' }, '–');
  const fill = make('i', {});
  fill.style.background = `var(${property})`;
  const caption = make('p', { class: 'caption' }, '');
  const bar = make('div', { class: 'meter', role: 'meter', 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': '0', 'aria-labelledby': `meter-${id}` }, fill);
  return {
    element: make('div', { class: 'metered' }, make('div', { class: 'card-head' }, make('h3', { id: `meter-${id}` }, title), value), bar, caption),
    set(share, text, words) {
      const percent = Math.round(Math.max(0, Math.min(1, share)) * 100);
      fill.style.width = `${percent}%`;
      bar.setAttribute('aria-valuenow', String(percent));
      bar.setAttribute('aria-valuetext', text);
      value.textContent = text;
      caption.textContent = words;
    },
  };
}
