// Formatting of numbers: rounding, and what is left out.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatDrafts } from '../format.js';

test('a speedup by drafts is shown only when there is one', () => {
  const check = (acceptance, gain, expect) => assert.equal(formatDrafts({ acceptance, gain }), expect);
  check(0.708, 1.42, '71 % accepted, 1.4× faster');
  check(1, 2, '100 % accepted, 2.0× faster');
  check(0.042, 1.04, '4.2 % accepted');
  check(0, 0.99, '0 % accepted');
});
