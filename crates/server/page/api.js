// The server's API: requests with the key, errors with their facts, answers as events.
//
// Addresses are relative to the page, so that it also works below a path of a reverse proxy. Does not retry:
// callers do. The key is kept in sessionStorage and is sent to no other origin.

import { readEvents } from './sse.js';

const KEY_NAME = 'millstream.key';

/** A failed request. `status` 0: the server cannot be reached. */
export class ApiError extends Error {
  constructor(status, { message, code = '', type = '', retryAfter = null }) {
    super(message);
    this.status = status;
    this.code = code || '';
    this.type = type || '';
    this.retryAfter = retryAfter;
  }
}

/** The API key of this tab, or an empty string. */
export function apiKey() {
  return sessionStorage.getItem(KEY_NAME) ?? '';
}

/** Keeps the API key until the tab is closed. */
export function setApiKey(key) {
  sessionStorage.setItem(KEY_NAME, key);
}

/** Sends a request; any status but success and those in `accept` throws an ApiError. */
export async function request(path, { method = 'GET', body, headers = {}, signal, accept = [] } = {}) {
  const sent = { ...headers };
  if (apiKey()) sent.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) sent['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method, headers: sent, signal, cache: 'no-store', credentials: 'same-origin', redirect: 'error',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, { message: 'The server cannot be reached.' });
  }
  if (response.ok || accept.includes(response.status)) return response;
  throw await errorOf(response);
}

/** A request whose response is JSON. */
export async function requestJson(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(response.status, { message: 'The server’s response is not JSON.' });
  }
}

/** Requests a chat completion and yields { kind: 'progress' | 'chunk', value }. Ends with `[DONE]`; a stream that ends before throws. */
export async function* chat(body, signal) {
  const response = await request('v1/chat/completions', {
    method: 'POST', signal, headers: { 'X-Prefill-Progress': '1', Accept: 'text/event-stream' },
    body: { ...body, stream: true, stream_options: { include_usage: true } },
  });
  try {
    for await (const { event, data } of readEvents(response.body)) {
      if (data === '[DONE]') return;
      const value = JSON.parse(data);
      if (event === 'prefill_progress') yield { kind: 'progress', value };
      else if (value.error) throw new ApiError(response.status, { ...value.error, message: value.error.message ?? 'The server reported an error.' });
      else yield { kind: 'chunk', value };
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError(0, { message: 'The connection was lost during the answer.' });
  }
  throw new ApiError(0, { message: 'The answer is incomplete: the server closed the connection.' });
}

async function errorOf(response) {
  const retryAfter = Number.parseInt(response.headers.get('Retry-After') ?? '', 10);
  let error = {};
  try {
    const body = await response.json();
    error = typeof body.error === 'object' && body.error !== null ? body.error : {};
  } catch {
    // Not an error of the server, but of a proxy before it: only the status is known.
  }
  return new ApiError(response.status, {
    message: typeof error.message === 'string' ? error.message : `The server answered with status ${response.status}.`,
    code: error.code,
    type: error.type,
    retryAfter: Number.isFinite(retryAfter) ? Math.min(Math.max(retryAfter, 1), 120) : null,
  });
}
