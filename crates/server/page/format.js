// How the page writes numbers, bytes, rates and dates.
//
// Bytes are decimal, as everywhere in Millstream (1 GB is 10⁹ bytes).

const count = new Intl.NumberFormat('en-US');
const UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];

/** A count with thousands separators. */
export function formatCount(value) {
  return count.format(Math.round(value));
}

/** A number of bytes with about three digits. */
export function formatBytes(bytes) {
  if (!Number.isFinite(bytes)) return '–';
  let value = Math.max(0, bytes);
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** A rate: one decimal below a hundred. */
export function formatRate(value) {
  if (!Number.isFinite(value)) return '–';
  return value >= 99.95 ? formatCount(value) : value.toFixed(1);
}

/** A share as a percentage. */
export function formatShare(share) {
  const percent = share * 100;
  return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** The share of drafted tokens that were accepted, and the speedup. */
export function formatDrafts({ acceptance, gain }) {
  const right = `${formatShare(acceptance)} accepted`;
  return gain >= 1.05 ? `${right}, ${gain.toFixed(1)}× faster` : right;
}

/** A time span in seconds, short. */
export function formatSeconds(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** `one apple`, `3 apples`. */
export function plural(value, one, many = `${one}s`) {
  return `${formatCount(value)} ${value === 1 ? one : many}`;
}

/** The heading under which a conversation of that time is listed. */
export function dayGroup(time, now = Date.now()) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const day = 86_400_000;
  if (time >= midnight) return 'Today';
  if (time >= midnight - day) return 'Yesterday';
  if (time >= midnight - 7 * day) return 'Last seven days';
  if (time >= midnight - 30 * day) return 'Last thirty days';
  return 'Older';
}
